import { createServer, connect } from 'node:net';
import { until } from './chromium.mjs';

/** The network between the browser and a server. It can be cut. */
export class Network {
  #open = new Set();
  #isDown = false;
  #refused = 0;
  #server;

  static async to(url) {
    const network = new Network();
    const { hostname, port } = new URL(url);
    network.#server = createServer(near => {
      if (network.#isDown) {
        network.#refused += 1;
        return near.destroy();
      }
      const far = connect(Number(port), hostname);
      for (const [from, to] of [
        [near, far],
        [far, near],
      ]) {
        network.#open.add(from);
        from.on('error', () => {});
        from.on('close', () => {
          network.#open.delete(from);
          to.destroy();
        });
        from.pipe(to);
      }
    });
    await new Promise(listening => network.#server.listen(0, '127.0.0.1', listening));
    network.url = `http://127.0.0.1:${network.#server.address().port}`;
    return network;
  }

  /** Breaks all connections, and lets none be made. */
  down() {
    this.#isDown = true;
    for (const socket of this.#open) socket.destroy();
  }

  /** Lets connections be made again. */
  up() {
    this.#isDown = false;
  }

  /** Breaks all connections, and lets the next ones fail. */
  async cut(failures) {
    const last = this.#refused + failures;
    this.down();
    await until('the page has tried in vain', () => this.#refused >= last);
    this.up();
  }

  close() {
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
  }
}
