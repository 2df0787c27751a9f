// CartPole as an external simulator that trains over RLlink:
//
//     runner train ppo_external_cartpole env.port=5556
//     npm install && node cartpole.mjs --port 5556
//
// With `--inference server` the server acts (ppo_external_cartpole_remote), and no npm package is needed.

import { parseArgs } from "node:util";

import { playWithPolicy, playWithServer } from "./cartpole_players.mjs";
import { seeded } from "./cartpole_simulator.mjs";
import { Client } from "./rllink.mjs";

const { values: given } = parseArgs({
  options: {
    host: { type: "string", default: "127.0.0.1" },
    port: { type: "string", default: "5556" },
    url: { type: "string" }, // URL of a WebSocket, instead of host and port
    token: { type: "string" },
    inference: { type: "string", default: "client" },
    episodes: { type: "string", default: "Infinity" }, // number of episodes to play
    seed: { type: "string", default: "0" },
  },
});

async function run() {
  const { host, port, url, token, inference } = given;
  if (!["client", "server"].includes(inference)) throw new Error(`--inference ${inference}: expected client or server`);
  const client = await Client.connect({ ...(url ? { url } : { host, port: Number(port) }), token });
  console.log(`connected to ${url ?? `${host}:${port}`}, actions by the ${inference}`);
  const game = {
    numEpisodes: Number(given.episodes),
    random: seeded(Number(given.seed)),
    onEpisode: (episode, numSteps) => console.log(`episode ${episode}: ${numSteps} steps`),
  };
  try {
    if (inference === "server") await playWithServer(client, game);
    else await playWithPolicy(client, await import("onnxruntime-web/wasm"), game);
  } finally {
    client.close();
  }
}

try {
  await run();
} catch (error) {
  if (error.code === "shutting_down") console.log("the run is over");
  else {
    console.error(error.message);
    process.exitCode = 1;
  }
}
