import { createServer, connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** The network between the browser and a server. It can be cut. */
export class Network {
  #open = new Set();
  #isDown = false;
  #server;

  static async to(url) {
    const network = new Network();
    const { hostname, port } = new URL(url);
    network.#server = createServer(near => {
      if (network.#isDown) return near.destroy();
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

  /** Breaks all connections, and lets none be made for some milliseconds. */
  async cut(time) {
    this.#isDown = true;
    for (const socket of this.#open) socket.destroy();
    await sleep(time);
    this.#isDown = false;
  }

  close() {
    this.#server.close();
    for (const socket of this.#open) socket.destroy();
  }
}
