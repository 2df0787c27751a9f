// CartPole (Barto, Sutton and Anderson, 1983) with the equations of Gymnasium's CartPole-v1.

const [GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH] = [9.8, 0.1, 1.1, 0.5]; // m/s2, kg, kg, m
const [FORCE_NEWTON, TIME_STEP_S] = [10, 0.02];
const [MAX_POSITION, MAX_ANGLE, MAX_STEPS] = [2.4, (12 * 2 * Math.PI) / 360, 500]; // m, rad

export class CartPole {
  state = [0, 0, 0, 0]; // position m, velocity m/s, angle rad, angular velocity rad/s
  numSteps = 0;

  /** @param random returns numbers in [0, 1) */
  reset(random = Math.random) {
    this.state = this.state.map(() => 0.1 * random() - 0.05);
    this.numSteps = 0;
    return this.state;
  }

  /** @param action 1 pushes to the right, 0 to the left; the reward is 1 for every step */
  step(action) {
    const [x, xDot, theta, thetaDot] = this.state;
    const [cosine, sine] = [Math.cos(theta), Math.sin(theta)];
    const force = action === 1 ? FORCE_NEWTON : -FORCE_NEWTON;
    const pull = (force + POLE_MASS * HALF_LENGTH * thetaDot * thetaDot * sine) / TOTAL_MASS;
    const angleAcceleration =
      (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4 / 3 - (POLE_MASS * cosine * cosine) / TOTAL_MASS));
    const acceleration = pull - (POLE_MASS * HALF_LENGTH * angleAcceleration * cosine) / TOTAL_MASS;
    const rates = [xDot, acceleration, thetaDot, angleAcceleration];
    this.state = this.state.map((value, i) => value + TIME_STEP_S * rates[i]);
    this.numSteps += 1;
    const is_terminated = Math.abs(this.state[0]) > MAX_POSITION || Math.abs(this.state[2]) > MAX_ANGLE;
    const is_truncated = !is_terminated && this.numSteps >= MAX_STEPS;
    return { obs: this.state, reward: 1, is_terminated, is_truncated };
  }
}

/** Returns a seeded generator of numbers in [0, 1) (mulberry32). */
export function seeded(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
