// RLlink 1 client (docs/reference/rllink.md) in one header: needs only C++17 and POSIX sockets.
//
//     rllink::Options options;
//     options.port = 5556;
//     rllink::Client client(options);
//     rllink::Config config = client.get_config();
//     rllink::Actions answer = client.get_actions({rllink::Observed::first("game-1", {0.1, 0.2})});
//
// Each method sends one request and waits for its answer. If the connection breaks, the client reconnects with growing
// pauses and, within the server's session, repeats the unanswered request; the server carries it out once. Every error
// is an rllink::Error. A Client belongs to one thread; a process may use any number of clients.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <locale>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace rllink {

// An error answer of the server (section 7 of the specification), or one of this client:
//   unreachable   no connection within Options::reconnect_s
//   session_lost  reconnected, but the server no longer knows the open episodes: restart them. It is not known whether
//                 the request was carried out; it is not repeated
//   bad_answer    the server sent something that the specification does not allow
//   bad_value     a value that JSON cannot represent, such as NaN
struct Error : std::runtime_error {
  Error(std::string code_, std::string message_, std::string path_ = "")
      : std::runtime_error(code_ + ": " + message_ + (path_.empty() ? "" : " at " + path_)),
        code(std::move(code_)), message(std::move(message_)), path(std::move(path_)) {}
  std::string code, message, path;

  // Whether the server does not know an episode of get_actions: restart the episode. A restarted server may know the
  // session, but not the episodes of get_actions.
  bool is_unknown_episode() const {
    return code == "session_lost" || code == "unknown_episode";
  }
};

// ---------------------------------------------------------------------------------------------------------- JSON

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;  // in the order of the text

  Json() = default;  // null
  Json(const char* text) : value_(std::string(text)) {}
  Json(std::string text) : value_(std::move(text)) {}
  Json(Array items) : value_(std::move(items)) {}
  template <class Number, std::enable_if_t<std::is_arithmetic_v<Number>, int> = 0>
  Json(Number number) {
    if constexpr (std::is_same_v<Number, bool>) value_ = number;
    else if constexpr (std::is_floating_point_v<Number>) value_ = static_cast<double>(number);
    else value_ = static_cast<std::int64_t>(number);
  }
  template <class Item>
  Json(const std::vector<Item>& items) : value_(Array(items.begin(), items.end())) {}
  template <class Item, std::size_t N>
  Json(const std::array<Item, N>& items) : value_(Array(items.begin(), items.end())) {}
  static Json object(std::initializer_list<Object::value_type> items) {
    Json made;
    made.value_ = Object(items);
    return made;
  }

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool as_bool() const { return get<bool>("a boolean"); }
  std::int64_t as_int() const { return get<std::int64_t>("an integer"); }
  double as_double() const {
    const auto* integer = std::get_if<std::int64_t>(&value_);
    return integer ? static_cast<double>(*integer) : get<double>("a number");
  }
  const std::string& as_string() const { return get<std::string>("a string"); }
  const Array& items() const { return get<Array>("a list"); }
  const Object& members() const { return get<Object>("an object"); }

  const Json* find(const std::string& key) const {  // nullptr if it is missing
    for (const auto& [name, value] : members())
      if (name == key) return &value;
    return nullptr;
  }
  const Json& at(const std::string& key) const {
    if (const Json* found = find(key)) return *found;
    throw Error("bad_answer", "the key '" + key + "' is missing");
  }
  void set(const std::string& key, Json value) {  // of an object; the key is new
    std::get<Object>(value_).emplace_back(key, std::move(value));
  }
  void push_back(Json item) {  // null becomes a list
    if (is_null()) value_ = Array();
    std::get<Array>(value_).push_back(std::move(item));
  }

  static Json parse(const std::string& text);
  std::string text() const {
    std::string out;
    write(out);
    return out;
  }

 private:
  template <class T>
  const T& get(const char* wanted) const {
    if (const T* held = std::get_if<T>(&value_)) return *held;
    throw Error("bad_answer", std::string("not ") + wanted);
  }
  void write(std::string& out) const;
  static void write_string(std::string& out, const std::string& text);

  friend class JsonReader;
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_ = nullptr;
};

namespace detail {

// Older libraries lack std::to_chars and std::from_chars of floating point; streams are slow but exist everywhere.
#if defined(__cpp_lib_to_chars) && !defined(RLLINK_NO_CHARCONV)
inline std::string text_of(double number) {
  char buffer[32];
  return std::string(buffer, std::to_chars(buffer, buffer + sizeof buffer, number).ptr);
}
inline double double_of(const char* begin, const char* end) {
  double number = 0;
  return std::from_chars(begin, end, number).ec == std::errc() ? number : std::nan("");
}
#else
inline std::string text_of(double number) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out.precision(17);
  out << number;
  return out.str();
}
inline double double_of(const char* begin, const char* end) {
  std::istringstream in(std::string(begin, end));
  in.imbue(std::locale::classic());
  double number = 0;
  return in >> number ? number : std::nan("");
}
#endif

}  // namespace detail

inline void Json::write(std::string& out) const {
  if (is_null()) out += "null";
  else if (const auto* flag = std::get_if<bool>(&value_)) out += *flag ? "true" : "false";
  else if (const auto* integer = std::get_if<std::int64_t>(&value_)) out += std::to_string(*integer);
  else if (const auto* number = std::get_if<double>(&value_)) {
    if (!std::isfinite(*number)) throw Error("bad_value", "cannot send a number that is not finite");
    out += detail::text_of(*number);
  } else if (const auto* string = std::get_if<std::string>(&value_)) write_string(out, *string);
  else if (const auto* array = std::get_if<Array>(&value_)) {
    out += '[';
    for (std::size_t i = 0; i < array->size(); ++i) {
      if (i) out += ',';
      (*array)[i].write(out);
    }
    out += ']';
  } else {
    out += '{';
    bool is_first = true;
    for (const auto& [key, value] : std::get<Object>(value_)) {
      if (!is_first) out += ',';
      is_first = false;
      write_string(out, key);
      out += ':';
      value.write(out);
    }
    out += '}';
  }
}

inline void Json::write_string(std::string& out, const std::string& text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') (out += '\\') += c;
    else if (static_cast<unsigned char>(c) < 0x20) {
      const char* digits = "0123456789abcdef";
      (((out += "\\u00") += digits[c >> 4])) += digits[c & 15];
    } else out += c;
  }
  out += '"';
}

// Reads strict RFC 8259: without comments, NaN, text after the value, duplicate keys, or lone surrogates.
class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : begin_(text.data()), at_(begin_), end_(begin_ + text.size()) {}

  Json read_all() {
    Json value = read_value(0);
    skip_space();
    if (at_ != end_) fail("text after the value");
    return value;
  }

 private:
  static constexpr int max_depth = 64;
  static constexpr std::size_t max_members = 4096;  // per object

  [[noreturn]] void fail(const std::string& what) const {
    throw Error("bad_answer", "invalid JSON: " + what + " at byte " + std::to_string(at_ - begin_));
  }
  char peek() const { return at_ < end_ ? *at_ : '\0'; }
  bool take(char c) { return peek() == c && at_ < end_ ? (++at_, true) : false; }
  void expect(const char* word) {
    for (; *word; ++word)
      if (!take(*word)) fail("unexpected character");
  }
  void skip_space() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
  }

  Json read_value(int depth) {
    if (depth > max_depth) fail("nested too deeply");
    skip_space();
    switch (peek()) {
      case '{': return read_object(depth);
      case '[': return read_array(depth);
      case '"': return Json(read_string());
      case 't': return expect("true"), Json(true);
      case 'f': return expect("false"), Json(false);
      case 'n': return expect("null"), Json();
      default: return read_number();
    }
  }

  Json read_array(int depth) {
    Json::Array items;
    expect("[");
    skip_space();
    if (take(']')) return Json(std::move(items));
    do {
      items.push_back(read_value(depth + 1));
      skip_space();
    } while (take(','));
    expect("]");
    return Json(std::move(items));
  }

  Json read_object(int depth) {
    Json object = Json::object({});
    expect("{");
    skip_space();
    if (take('}')) return object;
    do {
      skip_space();
      std::string key = read_string();
      if (object.find(key)) fail("the key '" + key + "' is duplicated");
      if (object.members().size() == max_members) fail("too many keys");
      skip_space();
      expect(":");
      object.set(key, read_value(depth + 1));
      skip_space();
    } while (take(','));
    expect("}");
    return object;
  }

  bool take_digits() {
    const char* start = at_;
    while (peek() >= '0' && peek() <= '9') ++at_;
    return at_ != start;
  }

  Json read_number() {
    const char* start = at_;
    bool is_integer = true;
    take('-');
    if (!take('0') && !take_digits()) fail("unexpected character");
    if (take('.')) {
      is_integer = false;
      if (!take_digits()) fail("missing digit after the point");
    }
    if (take('e') || take('E')) {
      is_integer = false;
      take('+') || take('-');
      if (!take_digits()) fail("missing digit in the exponent");
    }
    std::int64_t integer = 0;
    if (is_integer && std::from_chars(start, at_, integer).ec == std::errc()) return Json(integer);
    const double number = detail::double_of(start, at_);
    if (!std::isfinite(number)) fail("a number out of range");
    return Json(number);
  }

  std::string read_string() {
    std::string out;
    expect("\"");
    while (!take('"')) {
      if (at_ == end_) fail("a string without end");
      if (static_cast<unsigned char>(*at_) < 0x20) fail("a control character");
      if (take('\\')) read_escape(out);
      else read_character(out);
    }
    return out;
  }

  void read_character(std::string& out) {  // one UTF-8 character, 1 to 4 bytes
    const auto lead = static_cast<unsigned char>(*at_);
    const int size = lead < 0x80 ? 1 : lead >> 5 == 6 ? 2 : lead >> 4 == 14 ? 3 : lead >> 3 == 30 ? 4 : 0;
    if (size == 0 || end_ - at_ < size) fail("no UTF-8");
    std::uint32_t code = size == 1 ? lead : lead & (0x7f >> size);
    for (int i = 1; i < size; ++i) {
      const auto next = static_cast<unsigned char>(at_[i]);
      if (next >> 6 != 2) fail("no UTF-8");
      code = code << 6 | (next & 0x3f);
    }
    constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (code < smallest[size] || code > 0x10ffff || code >> 11 == 0x1b) fail("no UTF-8");
    out.append(at_, size);
    at_ += size;
  }

  void read_escape(std::string& out) {
    if (at_ == end_) fail("a string without end");
    const char kind = *at_++;
    const char* plain = "\"\\/bfnrt";
    if (const char* found = kind ? std::strchr(plain, kind) : nullptr) {
      out += "\"\\/\b\f\n\r\t"[found - plain];
      return;
    }
    if (kind != 'u') fail("an unknown escape");
    std::uint32_t code = read_hex();
    if (code >> 10 == 0x36) {  // the first half of a pair
      expect("\\u");
      const std::uint32_t low = read_hex();
      if (low >> 10 != 0x37) fail("half of a surrogate pair");
      code = 0x10000 + ((code & 0x3ff) << 10) + (low & 0x3ff);
    } else if (code >> 10 == 0x37) fail("half of a surrogate pair");
    append_utf8(out, code);
  }

  std::uint32_t read_hex() {
    std::uint32_t code = 0;
    if (end_ - at_ < 4 || std::from_chars(at_, at_ + 4, code, 16).ptr != at_ + 4) fail("expected four hex digits");
    at_ += 4;
    return code;
  }

  static void append_utf8(std::string& out, std::uint32_t code) {
    const auto tail = [&](int shift) { out += static_cast<char>(0x80 | (code >> shift & 0x3f)); };
    if (code < 0x80) out += static_cast<char>(code);
    else if (code < 0x800) out += static_cast<char>(0xc0 | code >> 6), tail(0);
    else if (code < 0x10000) out += static_cast<char>(0xe0 | code >> 12), tail(6), tail(0);
    else out += static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0);
  }

  const char *begin_, *at_, *end_;
};

inline Json Json::parse(const std::string& text) { return JsonReader(text).read_all(); }

// ---------------------------------------------------------------------------------------------------------- messages

struct Config {  // section 4
  std::int64_t env_steps_per_sample = 0;
  bool force_on_policy = false;
  Json observation_space, action_space;
};

struct State {  // section 5
  std::int64_t weights_seq_no = 0;
  std::string onnx_gzip;  // bytes: the gzip (RFC 1952) of an ONNX model
};

struct Episode {  // an episode or a part of an episode, section 6
  Json obs;      // T + 1 observations
  Json actions;  // T actions
  std::vector<double> rewards;  // T
  bool is_terminated = false, is_truncated = false;
  std::optional<std::string> id;               // parts with the same id form one episode
  std::optional<std::int64_t> t_started;       // time step of the first observation in its episode
  std::optional<std::int64_t> weights_seq_no;  // weights that chose the actions, if not those of the message
  Json action_logp, action_dist_inputs;        // T each, or null to let the server compute them

  Json to_json() const {
    Json made = Json::object({{"obs", obs}, {"actions", actions}, {"rewards", rewards},
                              {"is_terminated", is_terminated}, {"is_truncated", is_truncated}});
    if (id) made.set("id", *id);
    if (t_started) made.set("t_started", *t_started);
    if (weights_seq_no) made.set("weights_seq_no", *weights_seq_no);
    if (!action_logp.is_null()) made.set("action_logp", action_logp);
    if (!action_dist_inputs.is_null()) made.set("action_dist_inputs", action_dist_inputs);
    return made;
  }
};

struct Ack {
  std::int64_t env_steps = 0, weights_seq_no = 0;
};

struct Observed {  // an element of GET_ACTIONS
  std::string id;
  Json obs;
  std::optional<double> reward;  // reward of the previous step; unset in an episode's first element
  bool is_terminated = false, is_truncated = false;

  static Observed first(std::string id, Json obs) { return {std::move(id), std::move(obs), {}, false, false}; }

  Json to_json() const {
    Json made = Json::object({{"id", id}, {"obs", obs}});
    if (reward) made.set("reward", *reward);
    if (is_terminated) made.set("is_terminated", true);
    if (is_truncated) made.set("is_truncated", true);
    return made;
  }
};

struct Actions {
  std::vector<Json> actions;  // one per Observed, null if its episode has ended
  std::int64_t weights_seq_no = 0;
};

struct Options {
  std::string host = "127.0.0.1";
  int port = 5556;
  std::string token;         // empty if the server requires none
  bool use_session = true;   // request `session`; without it a broken connection is session_lost
  bool use_actions = true;   // request `actions`, which get_actions needs
  double heartbeat_s = 5;    // after four intervals of silence, the server counts as gone; 0: never
  double reconnect_s = 60;   // how long to try to connect, including the first time
  std::size_t max_answer_bytes = 99'999'999;
};

// ------------------------------------------------------------------------------------------------------- transport

namespace detail {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point then) {
  return std::chrono::duration<double>(Clock::now() - then).count();
}

struct ConnectionLost : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A TCP connection that carries frames.
class Connection {
 public:
  Connection(const std::string& host, int port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found))
      throw ConnectionLost(host + ": " + gai_strerror(failed));
    std::string reason = "address not found";
    for (addrinfo* one = found; one && fd_ < 0; one = one->ai_next) {
      fd_ = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
      set_timeout(SO_SNDTIMEO, 10);
      if (fd_ < 0 || connect(fd_, one->ai_addr, one->ai_addrlen) == 0) continue;
      reason = std::strerror(errno);
      ::close(fd_);
      fd_ = -1;
    }
    freeaddrinfo(found);
    if (fd_ < 0) throw ConnectionLost(reason);
    const int on = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
#ifdef SO_NOSIGPIPE
    setsockopt(fd_, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    set_timeout(SO_RCVTIMEO, 30);  // until the server reports its heartbeat interval
  }
  ~Connection() { ::close(fd_); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void limit_silence(double timeout_s) {  // 0: none
    set_timeout(SO_RCVTIMEO, timeout_s);
    if (timeout_s > 0) set_timeout(SO_SNDTIMEO, timeout_s);
  }

  void send(const std::string& body) {
    std::string header = std::to_string(body.size());
    const std::string frame = std::string(8 - header.size(), '0') + header + body;
    int num_unread = 0;
    for (std::size_t sent = 0; sent < frame.size();) {
      const ssize_t count = ::send(fd_, frame.data() + sent, frame.size() - sent, no_signal);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && errno == EAGAIN && has_more_unread(num_unread)) continue;
      if (count < 0) throw ConnectionLost(std::strerror(errno));
      sent += static_cast<std::size_t>(count);
    }
  }

  std::string receive(std::size_t max_bytes) {
    const std::string header = read(8);
    if (header.find_first_not_of("0123456789") != std::string::npos)
      throw Error("bad_answer", "the header is not a length");
    const std::size_t size = std::stoul(header);
    if (size > max_bytes) throw Error("bad_answer", "an answer of " + std::to_string(size) + " bytes");
    return read(size);
  }

 private:
#ifdef MSG_NOSIGNAL
  static constexpr int no_signal = MSG_NOSIGNAL;
#else
  static constexpr int no_signal = 0;
#endif

  void set_timeout(int option, double timeout_s) {
    timeval limit{};
    limit.tv_sec = static_cast<decltype(limit.tv_sec)>(timeout_s);
    limit.tv_usec = static_cast<decltype(limit.tv_usec)>((timeout_s - std::floor(timeout_s)) * 1e6);
    setsockopt(fd_, SOL_SOCKET, option, &limit, sizeof limit);
  }

  // Whether the server has sent bytes since the last call: WAIT, while it does not have memory for a request.
  bool has_more_unread(int& num_unread) {
    const int num_before = std::exchange(num_unread, 0);
    return ioctl(fd_, FIONREAD, &num_unread) == 0 && num_unread > num_before;
  }

  std::string read(std::size_t size) {  // memory grows with the received bytes, not with the announced length
    std::string bytes;
    char piece[1 << 16];
    while (bytes.size() < size) {
      const ssize_t count = recv(fd_, piece, std::min(sizeof piece, size - bytes.size()), 0);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw ConnectionLost(std::strerror(errno));
      if (count == 0) throw ConnectionLost("closed by the server");
      bytes.append(piece, static_cast<std::size_t>(count));
    }
    return bytes;
  }

  int fd_ = -1;
};

// Pauses of 0.1 s, 0.2 s, 0.4 s ... 5 s, partly random, so that clients do not reconnect at the same time.
class Backoff {
 public:
  explicit Backoff(double limit_s) : limit_s_(limit_s) {}

  void pause(const std::string& reason) {
    if (seconds_since(start_) > limit_s_) throw Error("unreachable", reason);
    const double share = std::uniform_real_distribution<double>(0.5, 1)(chance_);
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s_ * share));
    pause_s_ = std::min(2 * pause_s_, 5.0);
  }

 private:
  double limit_s_, pause_s_ = 0.1;
  Clock::time_point start_ = Clock::now();
  std::minstd_rand chance_{std::random_device{}()};
};

inline std::string decode_base64(const std::string& text) {
  const std::string alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::array<int, 256> value_of;
  value_of.fill(-1);
  for (int i = 0; i < 64; ++i) value_of[static_cast<unsigned char>(alphabet[i])] = i;
  std::size_t size = text.size();
  if (size % 4) throw Error("bad_answer", "invalid Base64: the length is not a multiple of 4");
  while (size && text.size() - size < 2 && text[size - 1] == '=') --size;
  std::string bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const int value = value_of[static_cast<unsigned char>(text[i])];
    if (value < 0) throw Error("bad_answer", "invalid Base64: unknown character");
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    const int unused = 6 - 2 * static_cast<int>(i % 4);  // bits that do not fill a byte yet
    if (i % 4) bytes += static_cast<char>(bits >> unused & 0xff);
  }
  return bytes;
}

}  // namespace detail

// ---------------------------------------------------------------------------------------------------------- client

class Client {
 public:
  // Connects. Throws Error, `unreachable` after Options::reconnect_s, `unauthorized` for a wrong token.
  explicit Client(Options options) : options_(std::move(options)) {
    detail::Backoff backoff(options_.reconnect_s);
    connect(backoff);
  }

  void ping() { ask(request("PING"), "PONG"); }

  Config get_config() {
    const Json answer = ask(request("GET_CONFIG"), "SET_CONFIG");
    return {answer.at("env_steps_per_sample").as_int(), answer.at("force_on_policy").as_bool(),
            answer.at("observation_space"), answer.at("action_space")};
  }

  State get_state() { return state_of(ask(request("GET_STATE"), "SET_STATE")); }

  // weights_seq_no: the number of the weights that chose the actions.
  Ack send_episodes(const std::vector<Episode>& episodes, std::int64_t weights_seq_no) {
    const Json answer = ask(episodes_request("EPISODES", episodes, weights_seq_no), "ACK");
    return {answer.at("env_steps").as_int(), answer.at("weights_seq_no").as_int()};
  }

  // On-policy servers answer once they have newer weights.
  State send_episodes_and_get_state(const std::vector<Episode>& episodes, std::int64_t weights_seq_no) {
    return state_of(ask(episodes_request("EPISODES_AND_GET_STATE", episodes, weights_seq_no), "SET_STATE"));
  }

  // Requests one action per element, clipped and scaled for the environment; the server records the steps.
  Actions get_actions(const std::vector<Observed>& episodes, bool explore = true) {
    Json message = request("GET_ACTIONS"), list = Json::Array();
    for (const Observed& one : episodes) list.push_back(one.to_json());
    message.set("episodes", std::move(list));
    message.set("explore", explore);
    const Json answer = ask(std::move(message), "ACTIONS");
    if (answer.at("actions").items().size() != episodes.size())
      throw Error("bad_answer", "the number of actions differs from the number of elements in the request");
    return {answer.at("actions").items(), answer.at("weights_seq_no").as_int()};
  }

  const Json& granted() const { return granted_; }  // extension -> options
  const Json& limits() const { return limits_; }

 private:
  static Json request(const char* type) { return Json::object({{"type", type}}); }

  static Json episodes_request(const char* type, const std::vector<Episode>& episodes, std::int64_t weights_seq_no) {
    Json message = request(type), list = Json::Array();
    for (const Episode& one : episodes) list.push_back(one.to_json());
    message.set("episodes", std::move(list));
    message.set("weights_seq_no", weights_seq_no);
    return message;
  }

  static State state_of(const Json& answer) {
    return {answer.at("weights_seq_no").as_int(), detail::decode_base64(answer.at("onnx_file").as_string())};
  }

  // Sends one request and returns its answer, reconnecting if necessary.
  Json ask(Json message, const char* answer_type) {
    is_numbered_ = has_session() && std::strcmp(answer_type, "PONG") != 0;  // PING is not numbered
    if (is_numbered_) message.set("request", last_request_ + 1);
    const std::string body = message.text();
    if (body.size() > max_body_bytes_)
      throw Error("too_large", std::to_string(body.size()) + " bytes exceed the server's limit of " +
                                   std::to_string(max_body_bytes_) + ". Send fewer episodes per message");
    detail::Backoff backoff(options_.reconnect_s);
    for (;;) {
      const auto start = detail::Clock::now();
      try {
        if (!connection_) reconnect(backoff);
        connection_->send(body);
        Json answer = receive();
        expect(answer, answer_type);
        return answer;
      } catch (const detail::ConnectionLost& lost) {
        connection_.reset();
        if (detail::seconds_since(start) > 5) backoff = detail::Backoff(options_.reconnect_s);  // it had worked
        backoff.pause(lost.what());
      } catch (const Error& error) {
        for (const char* ends : {"bad_answer", "bad_header", "too_large", "unauthorized", "shutting_down"})
          if (error.code == ends) connection_.reset();
        throw;
      }
    }
  }

  bool has_session() const { return !session_id_.is_null(); }

  void reconnect(detail::Backoff& backoff) {
    if (!connect(backoff))
      throw Error("session_lost", "the server no longer knows the episodes; restart them");
  }

  // Connects; returns whether the session continues, and otherwise begins a new one.
  bool connect(detail::Backoff& backoff) {
    for (;;) {
      try {
        connection_.emplace(options_.host, options_.port);
        connection_->send(hello().text());
        return welcomed(receive());
      } catch (const detail::ConnectionLost& lost) {
        connection_.reset();
        backoff.pause(lost.what());
      } catch (const Error&) {
        connection_.reset();
        throw;
      }
    }
  }

  Json hello() const {
    Json extensions = Json::object({});
    if (options_.use_session) extensions.set("session", Json::object({{"id", session_id_}}));
    if (options_.use_actions) extensions.set("actions", Json::object({}));
    if (options_.heartbeat_s > 0) extensions.set("heartbeat", Json::object({{"interval_s", options_.heartbeat_s}}));
    Json message = Json::object({{"type", "PING"}, {"protocol", 1}, {"extensions", std::move(extensions)}});
    if (!options_.token.empty()) message.set("token", options_.token);
    return message;
  }

  bool welcomed(const Json& pong) {
    if (pong.at("type").as_string() == "ERROR") throw error_of(pong);
    granted_ = pong.at("extensions");
    limits_ = pong.at("limits");
    max_body_bytes_ = static_cast<std::size_t>(std::min(limits_.at("max_body_bytes").as_int(), max_length));
    const Json* heartbeat = granted_.find("heartbeat");
    connection_->limit_silence(heartbeat ? 4 * heartbeat->at("interval_s").as_double() : 0);
    const Json* session = granted_.find("session");
    const bool is_resumed = session && session->at("resumed").as_bool();
    session_id_ = session ? session->at("id") : Json();
    if (!is_resumed) last_request_ = 0;
    return is_resumed;
  }

  Json receive() {  // the next frame, skipping WAIT
    for (;;) {
      Json answer = Json::parse(connection_->receive(options_.max_answer_bytes));
      const std::string& type = answer.at("type").as_string();
      if (type == "WAIT") continue;
      if (type == "ERROR") check_that_it_answers(answer);
      return answer;
    }
  }

  // These errors concern only the connection: the server closes it, and the next one may succeed.
  static void check_that_it_answers(const Json& answer) {
    const std::string& code = answer.at("code").as_string();
    if (code == "timeout" || code == "too_many_clients")
      throw detail::ConnectionLost(code + ": " + answer.at("message").as_string());
  }

  void expect(const Json& answer, const std::string& answer_type) {
    const std::string& type = answer.at("type").as_string();
    if (type == "ERROR") throw error_of(answer);  // a rejected request does not use up its number
    if (type != answer_type) throw Error("bad_answer", type + " instead of " + answer_type);
    if (is_numbered_ && answer.at("request").as_int() != ++last_request_)
      throw Error("bad_answer", "the answer to another request");
  }

  static Error error_of(const Json& answer) {
    const Json* path = answer.find("path");
    return Error(answer.at("code").as_string(), answer.at("message").as_string(), path ? path->as_string() : "");
  }

  static constexpr std::int64_t max_length = 99'999'999;  // the largest number of eight digits

  Options options_;
  std::optional<detail::Connection> connection_;
  Json granted_ = Json::object({}), limits_ = Json::object({}), session_id_;
  std::size_t max_body_bytes_ = max_length;
  std::int64_t last_request_ = 0;
  bool is_numbered_ = false;  // the request that waits for its answer
};

}  // namespace rllink
