// What the demo's tools act on. All chats of the server share it, also those that run at the same
// time, so a file is set aside for the scenario that deletes it, and what all of them did together
// is reconciled at the end.
import assert from 'node:assert/strict';

export class World {
  #url;
  #before;
  #unclaimed;
  #deleted = [];
  #approvedTransfers = [];
  #doneTransfers = [];

  static async open(baseUrl) {
    const world = new World();
    world.#url = `${baseUrl}/api/world`;
    world.#before = await world.read();
    assert(world.#before.files.length > 0, 'the world has no files left: start the demo anew');
    world.#unclaimed = [...world.#before.files];
    return world;
  }

  async read() {
    const response = await fetch(this.#url);
    assert(response.ok, `GET /api/world: ${response.status}`);
    return response.json();
  }

  /** A file that stays: for scenarios that delete nothing, which run before those that do. */
  get keptFile() {
    return this.#before.files[0];
  }

  /** A file that only the caller deletes, or undefined when all are spoken for. */
  claimFile() {
    return this.#unclaimed.shift();
  }

  async mustHold(path) {
    assert((await this.read()).files.includes(path), `${path} is gone from the world`);
  }

  /** The file is gone; whether this call deleted it is for `mustAddUp` to say. */
  async mustHaveDeleted({ path }, output) {
    assert.deepEqual(output, { path, deleted: output?.deleted === true }, 'output of delete_file');
    assert(!(await this.read()).files.includes(path), `${path} is still in the world`);
    if (output.deleted) this.#deleted.push(path);
  }

  /** To be said before the answer goes out: from then on the transfer may happen. */
  approveTransfer(input) {
    this.#approvedTransfers.push(input);
  }

  transferDone(input) {
    this.#doneTransfers.push(input);
  }

  /** No more transfers than were approved by now, no fewer than were reported done. */
  async transfersMustBePlausible() {
    const least = this.#doneTransfers.length;
    const count = (await this.read()).transfers.length - this.#before.transfers.length;
    const most = this.#approvedTransfers.length;
    assert(
      least <= count && count <= most,
      `${count} transfers happened, ${least} were reported, ${most} approved`,
    );
  }

  /**
   * Each file that is gone was deleted by one call, and the transfers are exactly the approved
   * ones.
   */
  async mustAddUp() {
    const { files, transfers } = await this.read();
    const gone = this.#before.files.filter(file => !files.includes(file));
    assert.deepEqual(
      this.#deleted.toSorted(),
      gone.toSorted(),
      'outputs that say "deleted", and files gone',
    );
    const asText = list => list.map(({ to, amount }) => `${amount} to ${to}`).toSorted();
    const made = transfers.slice(this.#before.transfers.length);
    assert.deepEqual(
      asText(made),
      asText(this.#approvedTransfers),
      'transfers in the world, and approved ones',
    );
  }
}
