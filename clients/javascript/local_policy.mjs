// A policy artifact (docs/reference/metrics_and_files.md) run by onnxruntime's npm package, one observation at a time.
//
//     import * as ort from "onnxruntime-web/wasm";
//     const policy = await LocalPolicy.load(ort, onnx); // the bytes of SET_STATE, unpacked
//     const { action } = await policy.act(obs); // greedy
//     const { action, sent_action, action_logp, action_dist_inputs, states } = await policy.act(obs, { explore: true });

/** Reads the metadata entry `runner_manifest` from the model's bytes, because onnxruntime-web does not return it. */
export function manifestOf(onnx) {
  const METADATA_PROPS = 14; // field numbers of ModelProto and StringStringEntryProto in onnx.proto
  const [KEY, VALUE] = [1, 2];
  const decode = (bytes) => new TextDecoder().decode(bytes);
  for (const [field, entry] of fieldsOf(onnx)) {
    if (field !== METADATA_PROPS) continue;
    const pair = Object.fromEntries(fieldsOf(entry));
    if (decode(pair[KEY]) === "runner_manifest") return JSON.parse(decode(pair[VALUE]));
  }
  throw new Error("this ONNX model is not a policy artifact: runner_manifest is missing");
}

/** Yields [number, bytes] of each length-delimited field of a protobuf message. */
function* fieldsOf(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      if (at >= bytes.length) throw new Error("the ONNX model ends in the middle of a field");
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < bytes.length) {
    const tag = varint();
    const kind = tag % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const size = varint();
      yield [Math.floor(tag / 8), bytes.subarray(at, at + size)];
      at += size;
    } else throw new Error(`this is not an ONNX model: wire type ${kind}`);
  }
}

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
}; // prettier-ignore

export class LocalPolicy {
  #ort;
  #session;

  /** Use `LocalPolicy.load`. */
  constructor(ort, session, manifest) {
    this.#ort = ort;
    this.#session = session;
    this.manifest = manifest;
  }

  /**
   * @param ort the module "onnxruntime-web" or "onnxruntime-web/wasm"
   * @param onnx Uint8Array
   */
  static async load(ort, onnx) {
    const manifest = manifestOf(onnx);
    const unknown = manifest.inputs.find(({ role }) => !["obs", "state"].includes(role));
    const needed = unknown?.role.replace("prev_", ""); // action or reward
    if (unknown) throw new Error(`the policy needs past ${needed}s, which this client does not store`);
    ort.env.wasm.numThreads = 1; // policies are small, and threads need special headers of the page
    return new LocalPolicy(ort, await ort.InferenceSession.create(onnx), manifest);
  }

  /**
   * Chooses an action.
   *
   * @param obs observation of the environment; lists may be typed arrays
   * @param states states of the previous step; undefined at the start of an episode
   * @param explore whether to sample from the distribution, for training; otherwise the greedy action
   * @param random returns numbers in [0, 1)
   * @returns `action` for the environment; `sent_action` for EPISODES, the same action before clipping;
   *   `action_logp` (undefined if the server should compute it), `action_dist_inputs`, `states`
   */
  async act(obs, { states = {}, explore = false, random = Math.random } = {}) {
    const outputs = await this.#session.run(this.#feeds(obs, states));
    const { inputs, distribution, action_scaling, action_space } = this.manifest;
    const next = inputs.filter(({ role }) => role === "state").map(({ name, next_from }) => [name, outputs[next_from]]);
    const action_dist_inputs = Array.from(outputs.action_dist_inputs.data);
    const common = { action_dist_inputs, states: Object.fromEntries(next) };
    if (!explore) {
      const action = greedy(action_space, "actions", outputs);
      return { action, sent_action: action, action_logp: undefined, ...common };
    }
    if (!action_scaling) throw new Error("custom connectors change actions only inside the graph: act without explore");
    return { ...sampled(distribution, action_scaling, action_dist_inputs, random), ...common };
  }

  /** Frees the model's memory. */
  async release() {
    await this.#session.release();
  }

  #feeds(obs, states) {
    const feeds = {};
    for (const { name, role, dtype, shape, path, initial } of this.manifest.inputs) {
      if (role === "state" && states[name]) feeds[name] = states[name];
      else feeds[name] = this.#tensor(dtype, shape, role === "state" ? initial : path.reduce((at, key) => at[key], obs));
    }
    return feeds;
  }

  /** Makes a batch of size one; a single number fills it. */
  #tensor(dtype, shape, value) {
    const size = shape.reduce((product, length) => product * length, 1);
    let numbers = flat(value);
    if (typeof value === "number") numbers = Array(size).fill(value);
    if (numbers.length !== size) throw new Error(`the policy needs ${size} numbers, got ${numbers.length}`);
    if (dtype.endsWith("int64")) numbers = numbers.map(BigInt);
    return new this.#ort.Tensor(dtype, ARRAYS[dtype].from(numbers), [1, ...shape]);
  }
}

const INFINITIES = { inf: Infinity, "-inf": -Infinity }; // the manifest writes them as text

function flat(value) {
  if (ArrayBuffer.isView(value)) return Array.from(value, Number);
  return Array.isArray(value) ? value.flatMap(flat) : [INFINITIES[value] ?? Number(value)];
}

/** Makes nested lists of this shape; without dimensions, the number itself. */
function shaped(numbers, shape) {
  if (shape.length === 0) return numbers[0];
  const stride = numbers.length / shape[0];
  return Array.from({ length: shape[0] }, (_, i) => shaped(numbers.slice(i * stride, (i + 1) * stride), shape.slice(1)));
}

function greedy(space, name, outputs) {
  if (space.space === "dict")
    return Object.fromEntries(space.spaces.map(([key, part]) => [key, greedy(part, `${name}/${key}`, outputs)]));
  if (space.space === "tuple") return space.spaces.map((part, i) => greedy(part, `${name}/${i}`, outputs));
  const { data, dims } = outputs[name];
  return shaped(Array.from(data, Number), dims.slice(1));
}

// --------------------------------------------------------------------------------------------------------- sampling

/** Samples the distribution: {action, sent_action, action_logp}, scaled for the environment. */
function sampled(distribution, scaling, allInputs, random) {
  if (distribution.name === "nested") return sampledParts(distribution, scaling, allInputs, random);
  const draw = DRAWS[distribution.name];
  if (!draw) throw new Error(`cannot sample from the distribution '${distribution.name}'`);
  const { values, logp } = draw(allInputs.slice(...distribution.slice), distribution, random);
  const { sent, taken } = scaled(values, scaling);
  const shape = distribution.shape ?? [];
  return { action: shaped(taken, shape), sent_action: shaped(sent, shape), action_logp: logp };
}

function sampledParts({ kind, parts }, scaling, allInputs, random) {
  const results = parts.map(([key, part], i) => [key, sampled(part, scaling.parts[i][1], allInputs, random)]);
  const collect = (name) => {
    const pairs = results.map(([key, result]) => [key, result[name]]);
    return kind === "dict" ? Object.fromEntries(pairs) : pairs.map(([, value]) => value);
  };
  const logps = results.map(([, { action_logp }]) => action_logp);
  const action_logp = logps.includes(undefined) ? undefined : logps.reduce((sum, logp) => sum + logp, 0);
  return { action: collect("action"), sent_action: collect("sent_action"), action_logp };
}

/** Samplers: inputs -> {values, logp}; logp is undefined if the server should compute it. */
const DRAWS = {
  categorical(logits, { start }, random) {
    const { index, logp } = choice(logits, random);
    return { values: [start + index], logp };
  },
  multi_categorical(logits, { sizes, starts }, random) {
    let at = 0;
    let logp = 0;
    const values = sizes.map((size, i) => {
      const chosen = choice(logits.slice(at, (at += size)), random);
      logp += chosen.logp;
      return starts[i] + chosen.index;
    });
    return { values, logp };
  },
  bernoulli(logits, _, random) {
    const bits = logits.map((logit) => choice([0, logit], random));
    return { values: bits.map(({ index }) => index), logp: bits.reduce((sum, bit) => sum + bit.logp, 0) };
  },
  diag_gaussian(inputs, _, random) {
    const half = inputs.length / 2;
    let logp = 0;
    const values = inputs.slice(0, half).map((mean, i) => {
      const [logDeviation, z] = [inputs[half + i], normal(random)];
      logp -= 0.5 * z * z + logDeviation + 0.5 * Math.log(2 * Math.PI);
      return mean + Math.exp(logDeviation) * z;
    });
    return { values, logp };
  },
  squashed_gaussian(inputs, { low, high }, random) {
    const { values } = DRAWS.diag_gaussian(inputs, {}, random);
    const squashed = values.map((value, i) => {
      const [bottom, top] = [bound(low, i), bound(high, i)];
      return clipped(unsquash(Math.tanh(value), bottom, top), bottom, top);
    });
    return { values: squashed, logp: undefined };
  },
};

function choice(logits, random) {
  const highest = Math.max(...logits);
  const weights = logits.map((logit) => Math.exp(logit - highest));
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  let left = random() * total;
  let index = weights.findIndex((weight) => (left -= weight) < 0);
  if (index < 0) index = weights.lastIndexOf(Math.max(...weights)); // rounding error at the end
  return { index, logp: logits[index] - highest - Math.log(total) };
}

function normal(random) {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

function bound(bounds, i) {
  const numbers = flat(bounds);
  return numbers.length === 1 ? numbers[0] : numbers[i];
}

/** Scales sampled values: unclipped for EPISODES, and clipped for the environment. */
function scaled(values, { kind, low, high }) {
  if (kind === "none") return { sent: values, taken: values };
  const sent = values.map((value, i) => {
    const [bottom, top] = [bound(low, i), bound(high, i)];
    return kind === "unsquash" ? unsquash(value, bottom, top) : value;
  });
  return { sent, taken: sent.map((value, i) => clipped(value, bound(low, i), bound(high, i))) };
}

/** Scales a number from [-1, 1] to bounds, even if the difference of the bounds overflows. */
function unsquash(unit, bottom, top) {
  return (top / 2 + bottom / 2) + unit * (top / 2 - bottom / 2);
}

function clipped(value, bottom, top) {
  return Math.min(Math.max(value, bottom), top);
}
