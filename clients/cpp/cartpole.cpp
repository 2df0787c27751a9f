// CartPole as an external simulator that trains over RLlink; the server chooses each action.
//
//     runner train ppo_external_cartpole_remote env.port=5556
//     g++ -std=c++17 -O2 -o cartpole cartpole.cpp && ./cartpole --port 5556
#include "cartpole_simulator.hpp"
#include "rllink.hpp"

#include <cstdlib>
#include <iostream>
#include <map>

namespace {

const char* const usage =
    "usage: cartpole [--host HOST] [--port PORT] [--token TOKEN] [--episodes N] [--seed SEED]\n"
    "  --episodes N  stop after N episodes; 0 (default) plays until the run is over\n";

// Options as name -> value.
std::map<std::string, std::string> parse_arguments(int count, char** arguments) {
  std::map<std::string, std::string> given{
      {"--host", "127.0.0.1"}, {"--port", "5556"}, {"--token", ""}, {"--episodes", "0"}, {"--seed", "0"}};
  for (int i = 1; i < count; i += 2) {
    if (given.count(arguments[i]) == 0 || i + 1 == count) {
      std::cerr << arguments[i] << "?\n" << usage;
      std::exit(2);
    }
    given[arguments[i]] = arguments[i + 1];
  }
  return given;
}

// Plays one episode; returns its number of steps, which is its return.
int play(rllink::Client& client, CartPole& simulator, const std::string& id) {
  rllink::Observed observed = rllink::Observed::first(id, simulator.obs());
  for (;;) {
    const rllink::Json action = client.get_actions({observed}).actions[0];
    if (action.is_null()) return simulator.num_steps;
    simulator.step(static_cast<int>(action.as_int()));
    observed = {id, simulator.obs(), 1.0, simulator.is_terminated(), simulator.is_truncated()};
  }
}

int run(const std::map<std::string, std::string>& given) {
  rllink::Options options;
  options.host = given.at("--host");
  options.port = std::stoi(given.at("--port"));
  options.token = given.at("--token");
  const int num_episodes = std::stoi(given.at("--episodes"));
  std::mt19937_64 random(std::stoull(given.at("--seed")));
  rllink::Client client(options);
  std::cout << "connected to " << options.host << ":" << options.port << std::endl;
  CartPole simulator;
  for (int episode = 0; num_episodes == 0 || episode < num_episodes; ++episode) {
    simulator.reset(random);
    try {
      const int num_steps = play(client, simulator, "episode-" + std::to_string(episode));
      std::cout << "episode " << episode << ": " << num_steps << " steps" << std::endl;
    } catch (const rllink::Error& error) {
      if (!error.is_unknown_episode()) throw;
      std::cout << "episode " << episode << ": " << error.message << std::endl;
    }
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run(parse_arguments(count, arguments));
  } catch (const rllink::Error& error) {
    if (error.code == "shutting_down") {
      std::cout << "the run is over" << std::endl;
      return 0;
    }
    std::cerr << error.what() << std::endl;
  } catch (const std::logic_error&) {  // from std::stoi
    std::cerr << "--port, --episodes and --seed must be numbers\n" << usage;
  }
  return 1;
}
