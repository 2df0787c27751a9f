// Records the steps of a simulator that runs the policy itself, as elements of EPISODES (specification, section 6).

export class EpisodeRecorder {
  #name;
  #number = 0;
  #chunks = []; // the last one is open

  /** @param name prefix of episode ids, unique among the recorders of one client */
  constructor(name) {
    this.#name = name;
  }

  /** @returns the number of steps that `take` would return */
  get numSteps() {
    return this.#chunks.reduce((sum, { rewards }) => sum + rewards.length, 0);
  }

  begin(obs) {
    this.#number += 1;
    this.#open(obs, `${this.#name}-${this.#number}`);
  }

  /**
   * @param action `sent_action` of LocalPolicy
   * @param obs the observation after the action
   * @param more other columns: `action_logp`, `action_dist_inputs`
   */
  step({ action, reward, obs, is_terminated = false, is_truncated = false, ...more }) {
    const chunk = this.#chunks.at(-1);
    chunk.obs.push(obs);
    chunk.actions.push(action);
    chunk.rewards.push(reward);
    Object.assign(chunk, { is_terminated, is_truncated });
    for (const [column, value] of Object.entries(more)) (chunk[column] ??= []).push(value);
  }

  /** Returns the chunks so far; an open episode continues in the next chunk, under the same id. */
  take() {
    const taken = this.#chunks.filter(({ rewards }) => rewards.length > 0);
    const last = this.#chunks.at(-1);
    this.#chunks = [];
    if (last && !last.is_terminated && !last.is_truncated)
      this.#open(last.obs.at(-1), last.id, last.t_started + last.rewards.length);
    return taken;
  }

  /** Forgets everything; call `begin` next. */
  clear() {
    this.#chunks = [];
  }

  #open(obs, id, t_started = 0) {
    const ends = { is_terminated: false, is_truncated: false };
    this.#chunks.push({ id, t_started, obs: [obs], actions: [], rewards: [], ...ends });
  }
}
