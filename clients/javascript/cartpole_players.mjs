// Plays CartPole over RLlink, in Node and in browsers, with actions of the server or of a local policy.

import { CartPole } from "./cartpole_simulator.mjs";
import { EpisodeRecorder } from "./episode_recorder.mjs";
import { LocalPolicy } from "./local_policy.mjs";

/** Error codes after which open episodes must be restarted: the server no longer knows or accepts them. */
const START_AGAIN = ["session_lost", "stale_weights", "unknown_weights"];

/**
 * Plays with server-side inference until `numEpisodes` have ended.
 *
 * @param onEpisode called with (number of the episode, number of steps)
 * @param onStep called with the simulator after each step and awaited, for example to draw it
 */
export async function playWithServer(client, { numEpisodes = Infinity, random, onEpisode, onStep }) {
  const simulator = new CartPole();
  for (let episode = 0; episode < numEpisodes; episode++) {
    const id = `episode-${episode}`;
    let observed = { id, obs: simulator.reset(random) };
    try {
      for (;;) {
        const [action] = (await client.getActions([observed])).actions;
        if (action === null) break;
        observed = { id, ...simulator.step(action) };
        await onStep?.(simulator);
      }
      onEpisode?.(episode, simulator.numSteps);
    } catch (error) {
      if (!error.isUnknownEpisode) throw error;
    }
  }
}

/** Plays like playWithServer, but with a policy that runs in this program. */
export async function playWithPolicy(client, ort, { numEpisodes = Infinity, random, onEpisode, onStep }) {
  const { env_steps_per_sample } = await client.getConfig();
  const simulator = new CartPole();
  const recorder = new EpisodeRecorder("cartpole");
  let state = await client.getState();
  let policy = await LocalPolicy.load(ort, state.onnx);
  let obs = null; // null before the first observation of an episode

  async function sendAndRefresh() {
    let newer;
    try {
      newer = await client.sendEpisodesAndGetState(recorder.take(), state.weights_seq_no);
    } catch (error) {
      if (!START_AGAIN.includes(error.code)) throw error;
      recorder.clear();
      obs = null;
      newer = await client.getState();
    }
    if (newer.weights_seq_no === state.weights_seq_no) return;
    await policy.release();
    policy = await LocalPolicy.load(ort, newer.onnx);
    state = newer;
  }

  for (let episode = 0; episode < numEpisodes; ) {
    if (obs === null) recorder.begin((obs = simulator.reset(random)));
    const { action, sent_action, action_logp, action_dist_inputs } = await policy.act(obs, { explore: true, random });
    const step = simulator.step(action);
    recorder.step({ ...step, action: sent_action, action_logp, action_dist_inputs });
    await onStep?.(simulator);
    obs = step.obs;
    if (step.is_terminated || step.is_truncated) {
      onEpisode?.(episode++, simulator.numSteps);
      obs = null;
    }
    if (recorder.numSteps >= env_steps_per_sample) await sendAndRefresh();
  }
  if (recorder.numSteps > 0) await client.sendEpisodes(recorder.take(), state.weights_seq_no);
}
