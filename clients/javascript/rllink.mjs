// RLlink 1 client (docs/reference/rllink.md) for Node 18 or newer and for browsers; JSON, no dependencies.
//
//     const client = await Client.connect({ host: "127.0.0.1", port: 5556 });             // TCP, in Node
//     const client = await Client.connect({ url: "ws://127.0.0.1:5580/" });   // WebSocket, through bridge.mjs
//     const { actions } = await client.getActions([{ id: "game-1", obs: [0.1, 0.2] }]);
//
// Each method sends one request and resolves with its answer. If the connection breaks, the client reconnects with
// growing pauses and, within the server's session, repeats the unanswered request; the server carries it out once.
// Every error is an RLlinkError.

const PROTOCOL = 1;
const HEADER_BYTES = 8;
const MAX_LENGTH = 99_999_999; // the largest number of eight digits
const CLOSING_ERRORS = ["bad_header", "too_large", "unauthorized", "shutting_down"];
const LONGEST_PAUSE_S = 5;
const CONNECT_TIMEOUT_S = 10;

/**
 * An error answer of the server (section 7 of the specification), or one of this client:
 * - `unreachable`: no connection within `reconnect_s`
 * - `session_lost`: reconnected, but the server no longer knows the open episodes; restart them. It is not known
 *   whether the request was carried out; it is not repeated
 * - `bad_answer`: the server sent something that the specification does not allow
 * - `bad_value`: a value that JSON cannot represent, such as NaN
 * - `closed`: the client was closed by `close()`
 */
export class RLlinkError extends Error {
  constructor(code, message, path) {
    super(`${code}: ${message}${path ? ` at ${path}` : ""}`);
    this.name = "RLlinkError";
    this.code = code;
    this.path = path;
  }

  /**
   * Whether the server does not know an episode of `getActions`: restart the episode. A restarted server may know the
   * session, but not the episodes of getActions.
   */
  get isUnknownEpisode() {
    return this.code === "session_lost" || this.code === "unknown_episode";
  }
}

class ConnectionLost extends Error {}

// ------------------------------------------------------------------------------------------------------- transports

/** Opens a connection with bytes in both directions. */
async function openTcp({ host = "127.0.0.1", port, tls }, onBytes, onClosed) {
  const { connect } = await import(tls ? "node:tls" : "node:net");
  const socket = connect({ host, port, ...tls });
  socket.setNoDelay(true);
  socket.setTimeout(1000 * CONNECT_TIMEOUT_S, () => socket.destroy(new Error("nobody answers")));
  socket.on("data", onBytes);
  socket.on("close", () => onClosed("closed by the server"));
  await new Promise((resolve, reject) => {
    socket.once(tls ? "secureConnect" : "connect", resolve);
    socket.once("error", (error) => reject(new ConnectionLost(error.message)));
    socket.on("error", (error) => onClosed(error.message));
  });
  socket.setTimeout(0);
  return { send: (bytes) => socket.write(bytes), close: () => socket.destroy() };
}

async function openWebSocket({ url }, onBytes, onClosed) {
  const socket = new WebSocket(url);
  socket.binaryType = "arraybuffer";
  socket.onmessage = ({ data }) => onBytes(new Uint8Array(data));
  await new Promise((resolve, reject) => {
    socket.onopen = resolve;
    socket.onerror = () => reject(new ConnectionLost(`cannot open a WebSocket at ${url}`));
    socket.onclose = () => {
      reject(new ConnectionLost("closed by the server"));
      onClosed("closed by the server");
    };
  });
  return { send: (bytes) => socket.send(bytes), close: () => socket.close() };
}

/** Frames over a transport. */
class Connection {
  #link;
  #pieces = [];
  #numBytes = 0;
  #lost = null;
  #wake = () => {};

  static async open(options) {
    const made = new Connection();
    const onBytes = (bytes) => {
      made.#pieces.push(bytes);
      made.#numBytes += bytes.length;
      made.#wake();
    };
    const onClosed = (reason) => {
      made.#lost ??= new ConnectionLost(reason);
      made.#wake();
    };
    made.#link = await (options.url ? openWebSocket : openTcp)(options, onBytes, onClosed);
    return made;
  }

  send(body) {
    const frame = new Uint8Array(HEADER_BYTES + body.length);
    frame.set(new TextEncoder().encode(String(body.length).padStart(HEADER_BYTES, "0")));
    frame.set(body, HEADER_BYTES);
    this.#link.send(frame);
  }

  /** Returns the next body; the server counts as gone after `silenceS` seconds without a byte. */
  async receive(maxBytes, silenceS) {
    const header = new TextDecoder().decode(await this.#read(HEADER_BYTES, silenceS));
    if (!/^[0-9]{8}$/.test(header)) throw new RLlinkError("bad_answer", "the header is not a length");
    if (Number(header) > maxBytes) throw new RLlinkError("bad_answer", `an answer of ${Number(header)} bytes`);
    return this.#read(Number(header), silenceS);
  }

  close() {
    this.#link.close();
    this.#lost ??= new ConnectionLost("closed");
    this.#wake();
  }

  async #read(size, silenceS) {
    while (this.#numBytes < size) {
      if (this.#lost) throw this.#lost;
      await this.#somethingNew(silenceS);
    }
    const all = this.#pieces.length === 1 ? this.#pieces[0] : joined(this.#pieces, this.#numBytes);
    this.#pieces = [all.subarray(size)];
    this.#numBytes -= size;
    return all.subarray(0, size);
  }

  async #somethingNew(silenceS) {
    let timer;
    await new Promise((resolve) => {
      this.#wake = resolve;
      if (silenceS === Infinity) return;
      timer = setTimeout(() => {
        this.#lost ??= new ConnectionLost(`nothing from the server for ${silenceS} s`);
        resolve();
      }, 1000 * silenceS);
    });
    clearTimeout(timer);
  }
}

/** Pauses of 0.1 s, 0.2 s, 0.4 s ... 5 s, partly random, so that clients do not reconnect at the same time. */
class Backoff {
  #start = Date.now();
  #pauseS = 0.1;
  #limitS;

  constructor(limitS) {
    this.#limitS = limitS;
  }

  async pause(reason) {
    if (Date.now() - this.#start > 1000 * this.#limitS) throw new RLlinkError("unreachable", reason);
    const pauseS = this.#pauseS * (0.5 + Math.random() / 2);
    await new Promise((resolve) => setTimeout(resolve, 1000 * pauseS));
    this.#pauseS = Math.min(2 * this.#pauseS, LONGEST_PAUSE_S);
  }
}

// ------------------------------------------------------------------------------------------------------------ codec

function joined(pieces, size) {
  const all = new Uint8Array(size);
  let at = 0;
  for (const piece of pieces) {
    all.set(piece, at);
    at += piece.length;
  }
  return all;
}

/** Encodes typed arrays as lists; numbers that are not finite are errors, whereas JSON.stringify would write null. */
function sendable(key, value) {
  if (typeof value === "number" && !Number.isFinite(value))
    throw new RLlinkError("bad_value", `cannot send a number that is not finite (in '${key}')`);
  if (typeof value === "bigint") return Number(value);
  return ArrayBuffer.isView(value) ? Array.from(value) : value;
}

function decoded(body) {
  let message;
  try {
    message = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
  } catch (error) {
    throw new RLlinkError("bad_answer", error.message);
  }
  if (typeof message?.type !== "string") throw new RLlinkError("bad_answer", "an answer without a type");
  return message;
}

/** Unpacks the bytes of `onnx_file`: gzip in Base64. */
async function unpacked(text, maxBytes) {
  const pieces = [];
  let size = 0;
  try {
    const zipped = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
    const reader = new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      pieces.push(part.value);
      size += part.value.length;
      if (size > maxBytes) throw new Error(`more than ${maxBytes} bytes`);
    }
  } catch (error) {
    throw new RLlinkError("bad_answer", `onnx_file: ${error.message}`);
  }
  return joined(pieces, size);
}

// ----------------------------------------------------------------------------------------------------------- client

const DEFAULTS = {
  token: undefined,
  session: true, // request `session`; without it a broken connection is session_lost
  actions: true, // request `actions`, which getActions needs
  heartbeat_s: 5, // after four intervals of silence, the server counts as gone; 0: never
  reconnect_s: 60, // how long to try to connect, including the first time
  max_answer_bytes: MAX_LENGTH,
  max_model_bytes: 2 ** 30,
};

export class Client {
  /** Extension -> options, and the server's limits, as in PONG. */
  granted = {};
  limits = {};
  #options;
  #connection = null;
  #sessionId = null;
  #lastRequest = 0;
  #silenceS = 30; // until the server reports its heartbeat interval
  #turn = Promise.resolve();
  #isClosed = false;

  /** Use `Client.connect`. */
  constructor(options) {
    this.#options = { ...DEFAULTS, ...options };
  }

  /**
   * @param options `{host, port}` with an optional `tls` (options of Node's tls.connect), or `{url}` of a WebSocket; see
   *   DEFAULTS for the others.
   */
  static async connect(options) {
    const client = new Client(options);
    await client.#connect(new Backoff(client.#options.reconnect_s));
    return client;
  }

  async ping() {
    await this.#ask({ type: "PING" }, "PONG");
  }

  /** @returns `{env_steps_per_sample, force_on_policy, observation_space, action_space}` */
  async getConfig() {
    return this.#ask({ type: "GET_CONFIG" }, "SET_CONFIG");
  }

  /** @returns `{weights_seq_no, onnx}`; `onnx` is a Uint8Array with the unpacked model */
  async getState() {
    return this.#stateOf(await this.#ask({ type: "GET_STATE" }, "SET_STATE"));
  }

  /** @returns `{env_steps, weights_seq_no}` */
  async sendEpisodes(episodes, weights_seq_no) {
    return this.#ask({ type: "EPISODES", episodes, weights_seq_no }, "ACK");
  }

  /** On-policy servers answer once they have newer weights. */
  async sendEpisodesAndGetState(episodes, weights_seq_no) {
    const request = { type: "EPISODES_AND_GET_STATE", episodes, weights_seq_no };
    return this.#stateOf(await this.#ask(request, "SET_STATE"));
  }

  /**
   * Requests actions from the server, which records the steps.
   *
   * @param episodes list of `{id, obs}` in an episode's first step, then of `{id, obs, reward, is_terminated?,
   *   is_truncated?}`.
   * @returns `{actions, weights_seq_no}`: one action per element, null if its episode has ended
   */
  async getActions(episodes, explore = true) {
    return this.#ask({ type: "GET_ACTIONS", episodes, explore }, "ACTIONS");
  }

  close() {
    this.#isClosed = true;
    this.#connection?.close();
  }

  async #stateOf({ weights_seq_no, onnx_file }) {
    return { weights_seq_no, onnx: await unpacked(onnx_file, this.#options.max_model_bytes) };
  }

  /** One request at a time: others wait for their turn. */
  async #ask(message, answerType) {
    const answer = this.#turn.then(() => this.#askNow(message, answerType));
    this.#turn = answer.catch(() => {});
    return answer;
  }

  /** Sends one request and returns its answer, reconnecting if necessary. */
  async #askNow(message, answerType) {
    const isNumbered = this.#sessionId !== null && message.type !== "PING";
    const request = isNumbered ? { ...message, request: this.#lastRequest + 1 } : message;
    const body = new TextEncoder().encode(JSON.stringify(request, sendable));
    const mostBytes = Math.min(this.limits.max_body_bytes, MAX_LENGTH);
    if (body.length > mostBytes)
      throw new RLlinkError("too_large", `${body.length} bytes exceed the limit of ${mostBytes}: send fewer episodes`);
    let backoff = new Backoff(this.#options.reconnect_s);
    for (;;) {
      const start = Date.now();
      try {
        if (!this.#connection && !(await this.#connect(backoff)))
          throw new RLlinkError("session_lost", "the server no longer knows the episodes; restart them");
        this.#connection.send(body);
        return this.#expect(await this.#receive(), answerType, isNumbered);
      } catch (error) {
        await this.#recover(error);
        if (Date.now() - start > 1000 * LONGEST_PAUSE_S) backoff = new Backoff(this.#options.reconnect_s); // had worked
        await backoff.pause(error.message);
      }
    }
  }

  /** Connects and sends PING; resolves with whether the session continues. */
  async #connect(backoff) {
    const { token, session, actions, heartbeat_s } = this.#options;
    const extensions = {
      ...(session && { session: { id: this.#sessionId } }),
      ...(actions && { actions: {} }),
      ...(heartbeat_s && { heartbeat: { interval_s: heartbeat_s } }),
    };
    const hello = JSON.stringify({ type: "PING", protocol: PROTOCOL, extensions, token });
    for (;;) {
      try {
        this.#connection = await Connection.open(this.#options);
        if (this.#isClosed) throw new ConnectionLost("closed meanwhile");
        this.#connection.send(new TextEncoder().encode(hello));
        return this.#welcomed(await this.#receive());
      } catch (error) {
        this.#drop();
        await this.#recover(error);
        await backoff.pause(error.message);
      }
    }
  }

  #welcomed(pong) {
    if (pong.type !== "PONG") throw errorOf(pong);
    ({ extensions: this.granted, limits: this.limits } = pong);
    const { session, heartbeat } = this.granted;
    this.#silenceS = heartbeat ? 4 * heartbeat.interval_s : Infinity;
    this.#sessionId = session?.id ?? null;
    if (!session?.resumed) this.#lastRequest = 0;
    return session?.resumed ?? false;
  }

  /** Returns the next answer, skipping WAIT. */
  async #receive() {
    for (;;) {
      const body = await this.#connection.receive(this.#options.max_answer_bytes, this.#silenceS);
      const answer = decoded(body);
      // These two concern only the connection: the server closes it, and the next one may succeed.
      if (["timeout", "too_many_clients"].includes(answer.code)) throw new ConnectionLost(errorOf(answer).message);
      if (answer.type !== "WAIT") return answer;
    }
  }

  #expect(answer, answerType, isNumbered) {
    if (answer.type === "ERROR") throw errorOf(answer); // a rejected request does not use up its number
    if (answer.type !== answerType) throw new RLlinkError("bad_answer", `${answer.type} instead of ${answerType}`);
    if (isNumbered && answer.request !== ++this.#lastRequest)
      throw new RLlinkError("bad_answer", "the answer to another request");
    return answer;
  }

  /** Returns if a new connection may help, and throws otherwise. */
  async #recover(error) {
    if (this.#isClosed) throw new RLlinkError("closed", "this client was closed");
    if (error instanceof ConnectionLost) return this.#drop();
    if (error.code === "bad_answer" || CLOSING_ERRORS.includes(error.code)) this.#drop();
    throw error;
  }

  #drop() {
    this.#connection?.close();
    this.#connection = null;
  }
}

function errorOf({ code, message, path }) {
  return new RLlinkError(code, message, path);
}
