// Drives the JavaScript client from a test: a JSON object a line in, its result or its error a line out.
import { createInterface } from "node:readline";

import { CartPole, seeded } from "./cartpole_simulator.mjs";
import { LocalPolicy } from "./local_policy.mjs";
import { Client } from "./rllink.mjs";

let client;
let policy;

const stateOf = ({ weights_seq_no, onnx }) => ({ weights_seq_no, model: Buffer.from(onnx).toString("hex") });

const CALLS = {
  async connect(options) {
    client?.close();
    client = await Client.connect(options);
    return client.granted;
  },
  ping: () => client.ping(),
  get_config: () => client.getConfig(),
  get_state: async () => stateOf(await client.getState()),
  send_episodes: ({ episodes, weights_seq_no }) => client.sendEpisodes(episodes, weights_seq_no),
  send_episodes_and_get_state: async ({ episodes, weights_seq_no }) =>
    stateOf(await client.sendEpisodesAndGetState(episodes, weights_seq_no)),
  get_actions: ({ episodes }) => client.getActions(episodes),
  async close_while_reconnecting() {
    const answer = client.getState();
    await new Promise((resolve) => setTimeout(resolve, 20)); // within the first pause
    client.close();
    await answer;
  },
  send_nan: () => client.getActions([{ id: "a", obs: [NaN] }]),
  cartpole({ state, actions }) {
    const simulator = new CartPole();
    simulator.state = state;
    const steps = actions.map((action) => simulator.step(action));
    return {
      states: steps.map(({ obs }) => obs),
      ends: steps.map(({ is_terminated, is_truncated }) => [is_terminated, is_truncated]),
    };
  },
  async load_policy({ model }) {
    const ort = await import("onnxruntime-web/wasm");
    policy = await LocalPolicy.load(ort, new Uint8Array(Buffer.from(model, "hex")));
    return policy.manifest;
  },
  /** Episodes of several steps: their action_dist_inputs and actions. */
  async act({ episodes, explore, seed }) {
    const random = seeded(seed ?? 0);
    const results = [];
    for (const observations of episodes) {
      let states;
      for (const obs of observations) {
        const result = await policy.act(obs, { states, explore, random });
        states = result.states;
        results.push({ ...result, states: undefined });
      }
    }
    return results;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { call, ...given } = JSON.parse(line);
  let said;
  try {
    said = { result: (await CALLS[call](given)) ?? null };
  } catch (error) {
    said = { error: { code: error.code ?? "other", message: error.message, path: error.path ?? "" } };
  }
  console.log(JSON.stringify(said));
}
process.exit(0);
