// A chat server on this machine that serves runs from ready-made frames, as `chat_routes` does, and
// breaks its connections where a test wants it.
import { once } from 'node:events';
import { createServer } from 'node:http';

/**
 * A run. `front` is sent first, by a request without `Last-Event-ID`. Each response takes one entry
 * of `cuts`: after `at` bytes it is `destroyed`, `closed` as if it was complete, or `silent`. Each
 * takes one entry of `statuses`, too: a number, or a word for something else that happens.
 */
class Run {
  front = [];
  cuts = [];
  statuses = [];
  requests = [];
  #open = new Set();

  constructor(id, settings) {
    Object.assign(this, settings, { id });
    this.cuts = [...this.cuts];
  }

  /** The frames behind an id, or undefined if there are none. */
  rest(last) {
    const at = this.log.findIndex(frame => frame.startsWith(`id: ${last}\n`));
    return at === -1 ? undefined : this.log.slice(at + 1);
  }

  serve(last, response) {
    this.#open.add(response);
    response.on('close', () => this.#open.delete(response));
    const status = this.statuses.shift() ?? 200;
    if (status === 'unreachable') return response.destroy();
    if (status === 'never') return;
    if (status !== 200) return sendStatus(status, response);
    const frames = last === undefined ? [...this.front, ...this.log] : this.rest(last);
    if (!frames) return sendStatus(204, response);
    response.writeHead(200, {
      'content-type': 'text/event-stream',
      'x-vercel-ai-ui-message-stream': 'v1',
    });
    response.flushHeaders();
    const bytes = Buffer.from(frames.join(''));
    const cut = this.cuts.shift();
    if (!cut) return response.end(bytes);
    const after = () => {
      if (cut.ends === 'closed') response.end();
      if (cut.ends === 'destroyed') response.destroy();
    };
    response.write(bytes.subarray(0, cut.at), after);
  }

  /** Waits until no connection to the run is open. */
  async isLeft() {
    for (const response of this.#open) if (!response.closed) await once(response, 'close');
  }
}

function sendStatus(status, response) {
  if (status === 'busy') response.writeHead(409, { 'retry-after': '1' });
  else response.writeHead(status === 'json' ? 200 : status, { 'content-type': 'application/json' });
  response.end(status === 204 ? undefined : `{"status":"${status}"}`);
}

export class CuttingServer {
  #server = createServer((request, response) => this.#serve(request, response));
  #runs = new Map();

  static async start() {
    const server = new CuttingServer();
    server.#server.listen(0, '127.0.0.1');
    await once(server.#server, 'listening');
    return server;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  add(settings) {
    const run = new Run(`chat ${this.#runs.size}/?`, settings);
    this.#runs.set(run.id, run);
    return run;
  }

  close() {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  async #serve(request, response) {
    const { method, headers, url } = request;
    const pieces = await request.toArray();
    const body = pieces.length ? JSON.parse(Buffer.concat(pieces)) : undefined;
    const [, inPath = ''] = /^\/api\/chat\/(.*)\/stream$/.exec(url) ?? [];
    const run = this.#runs.get(method === 'POST' ? body.id : decodeURIComponent(inPath));
    const last = headers['last-event-id'];
    run.requests.push({ method, path: url, last, authorization: headers.authorization, body });
    run.serve(last, response);
  }
}
