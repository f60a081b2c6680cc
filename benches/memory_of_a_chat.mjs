// The memory of the real demo, in /proc: 60 messages of 1.9 MB are posted to one chat, and then 12
// clients ask for it and read almost nothing. Reports what the chat holds, how much the memory grew,
// and how long another request takes meanwhile.
//   cargo build --release --example chat -p demo && node benches/memory_of_a_chat.mjs [PROGRAM]
import { spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

const target = process.env.CARGO_TARGET_DIR ?? 'target';
const env = { ...process.env, PORT: '0', RUST_LOG: 'error' };
const demo = spawn(process.argv[2] ?? `${target}/release/examples/chat`, { env, stdio: ['ignore', 'pipe', 'inherit'] });
process.on('exit', () => demo.kill());
const address = await new Promise(resolve => {
  let text = '';
  demo.stdout.on('data', data => {
    text += data;
    const port = /http:\/\/127\.0\.0\.1:(\d+)/.exec(text);
    if (port) resolve(Number(port[1]));
  });
});
const origin = `http://127.0.0.1:${address}`;
const megabytes = bytes => (bytes / 1e6).toFixed(1) + ' MB';
const memory = name => {
  const status = readFileSync(`/proc/${demo.pid}/status`, 'utf8');
  return Number(new RegExp(`${name}:\\s+(\\d+) kB`).exec(status)[1]) * 1024;
};
const post = async (chat, id, text) => {
  const message = { id, role: 'user', parts: [{ type: 'text', text }] };
  const response = await fetch(`${origin}/api/chat`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ id: chat, message }),
  });
  return [response.status, await response.text()];
};

await post('small', 'm', 'hello');
const before = memory('VmRSS');
const statuses = {};
let refusal = '';
for (let number = 0; number < 60; number++) {
  const [status, text] = await post('large', `m${number}`, 'weather '.padEnd(1_900_000, 'x'));
  statuses[status] = (statuses[status] ?? 0) + 1;
  if (status !== 200) refusal = text;
}
console.log(`60 messages of 1.9 MB: ${JSON.stringify(statuses)}; ${refusal}`);
const kept = (await (await fetch(`${origin}/api/chat/large`)).arrayBuffer()).byteLength;
const posted = memory('VmRSS');

const readers = [];
for (let number = 0; number < 12; number++) {
  const socket = net.connect(address, '127.0.0.1');
  socket.write(`GET /api/chat/large HTTP/1.1\r\nhost: 127.0.0.1:${address}\r\n\r\n`);
  socket.pause();
  readers.push(socket);
}
let [most, slowest] = [0, 0];
for (let look = 0; look < 50; look++) {
  await sleep(100);
  readers.forEach(socket => socket.read(1));
  const begin = performance.now();
  await fetch(`${origin}/api/chat/small`).then(response => response.text());
  slowest = Math.max(slowest, performance.now() - begin);
  most = Math.max(most, memory('VmRSS'));
}
console.log(`the chat holds ${megabytes(kept)}; the memory grew by ${megabytes(posted - before)} while it was posted`);
console.log(`with 12 slow readers by ${megabytes(most - before)}, ${((most - before) / kept).toFixed(2)} × the chat`);
console.log(`at its peak by ${megabytes(memory('VmHWM') - before)}`);
console.log(`another request took at most ${slowest.toFixed(0)} ms`);
process.exit();
