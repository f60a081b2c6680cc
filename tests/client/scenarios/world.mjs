// The files and transfers of the demo. All chats of the server share them, also chats that run at
// the same time. So each scenario that deletes a file claims one, and the effects of all scenarios
// are checked together at the end.
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
    assert(world.#before.files.length > 0, 'the world has no files left: restart the demo');
    world.#unclaimed = [...world.#before.files];
    return world;
  }

  async read() {
    const response = await fetch(this.#url);
    assert(response.ok, `GET /api/world: ${response.status}`);
    return response.json();
  }

  /** A file for scenarios that delete nothing. They are played before the others. */
  get keptFile() {
    return this.#before.files[0];
  }

  /** A file that only the caller deletes, or undefined if all files are claimed. */
  claimFile() {
    return this.#unclaimed.shift();
  }

  async mustHold(path) {
    assert((await this.read()).files.includes(path), `${path} is gone from the world`);
  }

  /** Checks that the file is gone. `mustAddUp` checks that one call deleted it. */
  async mustHaveDeleted({ path }, output) {
    assert.deepEqual(output, { path, deleted: output?.deleted === true }, 'output of delete_file');
    assert(!(await this.read()).files.includes(path), `${path} is still in the world`);
    if (output.deleted) this.#deleted.push(path);
  }

  /** Call it before the answer is sent: the transfer may happen from then on. */
  approveTransfer(input) {
    this.#approvedTransfers.push(input);
  }

  transferDone(input) {
    this.#doneTransfers.push(input);
  }

  /** Checks that at most the approved transfers, and at least the reported ones, have happened. */
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
   * Checks that one call deleted each file that is gone, and that the transfers are exactly the
   * approved ones.
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
