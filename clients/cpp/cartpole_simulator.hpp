// CartPole (Barto, Sutton and Anderson, 1983) with the equations of Gymnasium's CartPole-v1.
#pragma once

#include <array>
#include <cmath>
#include <random>

struct CartPole {
  static constexpr double pi = 3.141592653589793;
  static constexpr double gravity = 9.8, cart_mass = 1.0, pole_mass = 0.1, half_length = 0.5;  // m/s2, kg, kg, m
  static constexpr double total_mass = cart_mass + pole_mass, pole_mass_length = pole_mass * half_length;
  static constexpr double force_newton = 10.0, time_step_s = 0.02;
  static constexpr double max_position = 2.4, max_angle = 12 * 2 * pi / 360;  // m, rad
  static constexpr int max_steps = 500;

  std::array<double, 4> state{};  // position m, velocity m/s, angle rad, angular velocity rad/s
  int num_steps = 0;

  template <class Random>
  void reset(Random& random) {
    std::uniform_real_distribution<double> start(-0.05, 0.05);
    for (double& value : state) value = start(random);
    num_steps = 0;
  }

  // action: 1 pushes to the right, 0 to the left. The reward is 1 for every step.
  void step(int action) {
    auto& [x, x_dot, theta, theta_dot] = state;
    const double force = action == 1 ? force_newton : -force_newton;
    const double cosine = std::cos(theta), sine = std::sin(theta);
    const double pull = (force + pole_mass_length * (theta_dot * theta_dot) * sine) / total_mass;
    const double angle_acceleration = (gravity * sine - cosine * pull) /
                                      (half_length * (4.0 / 3.0 - pole_mass * (cosine * cosine) / total_mass));
    const double acceleration = pull - pole_mass_length * angle_acceleration * cosine / total_mass;
    x += time_step_s * x_dot;
    x_dot += time_step_s * acceleration;
    theta += time_step_s * theta_dot;
    theta_dot += time_step_s * angle_acceleration;
    ++num_steps;
  }

  std::array<float, 4> obs() const {
    return {static_cast<float>(state[0]), static_cast<float>(state[1]), static_cast<float>(state[2]),
            static_cast<float>(state[3])};
  }
  bool is_terminated() const { return std::abs(state[0]) > max_position || std::abs(state[2]) > max_angle; }
  bool is_truncated() const { return !is_terminated() && num_steps >= max_steps; }
};
