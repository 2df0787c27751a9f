// Drives the C++ client from a test: a JSON object a line in, its result or its error a line out.
#include "cartpole_simulator.hpp"
#include "rllink.hpp"

#include <iostream>
#include <memory>

namespace {

using rllink::Json;

std::unique_ptr<rllink::Client> client;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[byte >> shift & 15];
  return text;
}

rllink::Options options_of(const Json& given) {
  rllink::Options options;
  options.port = static_cast<int>(given.at("port").as_int());
  if (const Json* token = given.find("token")) options.token = token->as_string();
  if (const Json* session = given.find("session")) options.use_session = session->as_bool();
  if (const Json* actions = given.find("actions")) options.use_actions = actions->as_bool();
  if (const Json* heartbeat = given.find("heartbeat_s")) options.heartbeat_s = heartbeat->as_double();
  if (const Json* reconnect = given.find("reconnect_s")) options.reconnect_s = reconnect->as_double();
  return options;
}

std::vector<rllink::Episode> episodes_of(const Json& given) {
  std::vector<rllink::Episode> episodes;
  for (const Json& one : given.items()) {
    rllink::Episode episode;
    episode.obs = one.at("obs");
    episode.actions = one.at("actions");
    for (const Json& reward : one.at("rewards").items()) episode.rewards.push_back(reward.as_double());
    episode.is_terminated = one.at("is_terminated").as_bool();
    episode.is_truncated = one.at("is_truncated").as_bool();
    if (const Json* id = one.find("id")) episode.id = id->as_string();
    if (const Json* t_started = one.find("t_started")) episode.t_started = t_started->as_int();
    if (const Json* logp = one.find("action_logp")) episode.action_logp = *logp;
    if (const Json* inputs = one.find("action_dist_inputs")) episode.action_dist_inputs = *inputs;
    episodes.push_back(std::move(episode));
  }
  return episodes;
}

std::vector<rllink::Observed> observed_of(const Json& given) {
  std::vector<rllink::Observed> all;
  for (const Json& one : given.items()) {
    rllink::Observed observed = rllink::Observed::first(one.at("id").as_string(), one.at("obs"));
    if (const Json* reward = one.find("reward")) observed.reward = reward->as_double();
    if (const Json* ended = one.find("is_terminated")) observed.is_terminated = ended->as_bool();
    if (const Json* ended = one.find("is_truncated")) observed.is_truncated = ended->as_bool();
    all.push_back(std::move(observed));
  }
  return all;
}

Json state_json(const rllink::State& state) {
  return Json::object({{"weights_seq_no", state.weights_seq_no}, {"model", hex(state.onnx_gzip)}});
}

Json cartpole(const Json& given) {
  CartPole simulator;
  for (int i = 0; i < 4; ++i) simulator.state[i] = given.at("state").items()[i].as_double();
  Json states = Json::Array(), ends = Json::Array();
  for (const Json& action : given.at("actions").items()) {
    simulator.step(static_cast<int>(action.as_int()));
    states.push_back(simulator.state);
    ends.push_back(std::vector<bool>{simulator.is_terminated(), simulator.is_truncated()});
  }
  return Json::object({{"states", states}, {"ends", ends}});
}

Json answer(const Json& given) {
  const std::string& call = given.at("call").as_string();
  if (call == "connect") {
    client = std::make_unique<rllink::Client>(options_of(given));
    return client->granted();
  }
  if (call == "ping") return client->ping(), Json();
  if (call == "get_config") {
    const rllink::Config config = client->get_config();
    return Json::object({{"env_steps_per_sample", config.env_steps_per_sample},
                         {"force_on_policy", config.force_on_policy},
                         {"observation_space", config.observation_space},
                         {"action_space", config.action_space}});
  }
  if (call == "get_state") return state_json(client->get_state());
  if (call == "send_episodes") {
    const rllink::Ack ack = client->send_episodes(episodes_of(given.at("episodes")), given.at("weights_seq_no").as_int());
    return Json::object({{"env_steps", ack.env_steps}, {"weights_seq_no", ack.weights_seq_no}});
  }
  if (call == "send_episodes_and_get_state")
    return state_json(
        client->send_episodes_and_get_state(episodes_of(given.at("episodes")), given.at("weights_seq_no").as_int()));
  if (call == "get_actions") {
    const rllink::Actions actions = client->get_actions(observed_of(given.at("episodes")));
    return Json::object({{"actions", actions.actions}, {"weights_seq_no", actions.weights_seq_no}});
  }
  if (call == "json") return Json::parse(given.at("text").as_string());
  if (call == "send_nan") return client->get_actions({rllink::Observed::first("a", std::nan(""))}).actions;
  if (call == "cartpole") return cartpole(given);
  throw rllink::Error("bad_value", "unknown call " + call);
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json said = Json::object({});
    try {
      said.set("result", answer(Json::parse(line)));
    } catch (const rllink::Error& error) {
      said.set("error", Json::object({{"code", error.code}, {"message", error.message}, {"path", error.path}}));
    }
    std::cout << said.text() << std::endl;
  }
}
