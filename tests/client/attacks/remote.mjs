// A server under attack in another process, over HTTP. It creates a chat route for each recipe, and
// returns the effects of the tools there and the prompts of the model.
import http from 'node:http';
import { Body } from './values.mjs';

export class RemoteServer {
  #host;

  constructor(host) {
    this.#host = host;
  }

  /** A fresh server under `base`, with the recipe's `model`. */
  static async start(base, model = []) {
    const script = new Body().resolve(model);
    const { host } = await postJson(`${base}/hosts`, { model: script });
    return new RemoteServer(`${base}/hosts/${host}`);
  }

  async respond(request) {
    const headers = Object.fromEntries(request.headers);
    const { pathname } = new URL(request.url);
    const { status, text } = await send(`${this.#host}${pathname}`, {
      method: request.method,
      headers,
      body: await request.text(),
    });
    return new Response(text || null, { status });
  }

  /** Executes a `server` step. */
  change = step => postJson(`${this.#host}/server`, step);

  log = async () => JSON.parse((await send(`${this.#host}/log`, { method: 'GET' })).text);
}

async function postJson(url, value) {
  const headers = { 'content-type': 'application/json' };
  const { status, text } = await send(url, {
    method: 'POST',
    headers,
    body: JSON.stringify(value),
  });
  if (status !== 200) throw new Error(`${url}: ${status} ${text}`);
  return text && JSON.parse(text);
}

/**
 * Does not use `fetch`, which adds headers.
 * Each request has its own connection, because a server may close a connection whose body it has
 * not read.
 */
function send(url, { method, headers, body }) {
  return new Promise((resolve, reject) => {
    const request = http.request(url, { method, headers, agent: false }, response => {
      const pieces = [];
      response.on('data', piece => pieces.push(piece));
      response.on('error', reject);
      response.on('end', () => {
        resolve({ status: response.statusCode, text: Buffer.concat(pieces).toString() });
      });
    });
    request.on('error', reject);
    request.end(body);
  });
}
