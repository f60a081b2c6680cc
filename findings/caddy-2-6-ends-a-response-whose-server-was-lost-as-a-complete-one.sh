#!/usr/bin/env bash
# Caddy 2.6.2 (Debian 12: 2.6.2-5), 2026-11-30.
#
# Behaviour: `reverse_proxy` in front of a server that is lost in the middle of a chunked response. Read directly, the
# response is cut off: its last chunk is missing, and `fetch` rejects while the body is read. Through Caddy, the body ends
# in the regular way after the part that arrived. The log of Caddy says that it aborts an incomplete response.
#
# What most would guess: the client of a proxy sees that the response is incomplete, as the client of the server does.
#
# Whom it matters to: answers that are streamed, for example as server-sent events. A chat takes the beginning of an answer
# for the whole one unless the format itself has an end, such as `[DONE]`, and the client looks for it.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq caddy=2.6.2-5 2>/dev/null
dpkg-deb -x caddy_*.deb .
cat >main.mjs <<'JS'
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:net';

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));
const head = 'HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n';
const lost = createServer(socket => {
  socket.on('error', () => {});
  socket.once('data', () => socket.end(`${head}9\r\ndata: 1\n\n\r\n`));
});
const upstream = await listen(lost);
const free = createServer();
const port = await listen(free);
await new Promise(done => free.close(done));
writeFileSync('Caddyfile', `{
  admin off
  auto_https off
}
http://127.0.0.1:${port} {
  reverse_proxy 127.0.0.1:${upstream}
}
`);
const env = { ...process.env, HOME: process.cwd() };
const arguments_ = ['run', '--config', 'Caddyfile', '--adapter', 'caddyfile'];
const caddy = spawn('usr/bin/caddy', arguments_, { env, stdio: 'ignore' });
const read = async port => {
  let text = '';
  try {
    const response = await fetch(`http://127.0.0.1:${port}/`);
    for await (const piece of response.body) text += Buffer.from(piece);
    return `${JSON.stringify(text)}, complete`;
  } catch {
    return text && `${JSON.stringify(text)}, cut off`;
  }
};
console.log(`direct: ${await read(upstream)}`);
let through;
while (!(through = await read(port))) await new Promise(done => setTimeout(done, 100));
console.log(`through Caddy: ${through}`);
caddy.kill();
lost.close();
JS
printed=$(timeout 60 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'direct: "data: 1\n\n", cut off
through Caddy: "data: 1\n\n", complete' ]
