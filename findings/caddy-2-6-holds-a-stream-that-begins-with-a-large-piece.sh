#!/usr/bin/env bash
# Caddy 2.6.2 (Debian 12: 2.6.2-5), 2026-12-01.
#
# Behaviour: `encode gzip` in front of `reverse_proxy`, and a response of server-sent events. If its first piece has a few
# hundred bytes, the response is not compressed, and each piece arrives when it is sent. If its first piece is larger than
# 512 bytes, the response is compressed, and the client gets nothing of it until the server ends it: what is flushed does not
# leave the compressor. `flush_interval -1` of the proxy changes nothing.
#
# What most would guess: compression treats all events alike, and a flush of the proxy reaches the client.
#
# Whom it matters to: answers that begin with a short event, and arrive at once in every test, and the same answers when a
# page resumes them, since their first piece then has all that was sent before. Match `encode` by the type of the response,
# without `text/event-stream`.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq caddy=2.6.2-5 2>/dev/null
dpkg-deb -x caddy_*.deb .
cat >main.mjs <<'JS'
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));
let arrived = () => {};
const answers = createServer(async (request, response) => {
  response.writeHead(200, { 'content-type': 'text/event-stream' });
  response.write(`data: ${'x'.repeat(Number(request.url.slice(1)))}\n\n`);
  const seen = new Promise(done => { arrived = () => done('before the end'); });
  const waited = new Promise(done => setTimeout(done, 5000, 'with the end'));
  response.end(`data: ${await Promise.race([seen, waited])}\n\n`);
});
const upstream = await listen(answers);
const free = createServer();
const port = await listen(free);
await new Promise(done => free.close(done));
writeFileSync('Caddyfile', `{
  admin off
  auto_https off
}
http://127.0.0.1:${port} {
  encode gzip
  reverse_proxy 127.0.0.1:${upstream} {
    flush_interval -1
  }
}
`);
const env = { ...process.env, HOME: process.cwd() };
const arguments_ = ['run', '--config', 'Caddyfile', '--adapter', 'caddyfile'];
const caddy = spawn('usr/bin/caddy', arguments_, { env, stdio: 'ignore' });
const read = async size => {
  const response = await fetch(`http://127.0.0.1:${port}/${size}`);
  let text = '';
  for await (const piece of response.body) {
    text += Buffer.from(piece);
    if (text.endsWith('\n\n')) arrived();
  }
  return `${response.headers.get('content-encoding')}, ${text.slice(text.lastIndexOf('data: ') + 6).trim()}`;
};
while (!(await read(1).catch(() => null))) await new Promise(done => setTimeout(done, 100));
for (const size of [300, 1000]) console.log(`${size} bytes: ${await read(size)}`);
caddy.kill();
process.exit(0);
JS
printed=$(timeout 60 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '300 bytes: null, before the end
1000 bytes: gzip, with the end' ]
