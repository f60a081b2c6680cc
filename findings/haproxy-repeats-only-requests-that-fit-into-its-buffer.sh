#!/usr/bin/env bash
# HAProxy 2.6.12 (Debian 12: 2.6.12-1+deb12u4), 2026-11-30.
#
# Behaviour: `retry-on 503` with `option redispatch 1` in front of two servers, of which one answers 503 to everything. A
# small POST always gets the 200 of the other server. A POST of 20 000 bytes gets the 503 each time that it is the turn of
# the first server: HAProxy repeats only a request that is whole in its buffer, `tune.bufsize`, which has 16 384 bytes.
# Nothing warns of it when the configuration is read.
#
# What most would guess: `retry-on` applies to every request.
#
# Whom it matters to: a chat whose client posts the whole history, in front of servers that answer 503 while they shut down.
# Short chats never see it, and long ones lose a message at each deployment. Raise `tune.bufsize`, or take a server that
# shuts down out by its health check first.
set -euo pipefail

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download -qq haproxy=2.6.12-1+deb12u4 2>/dev/null
dpkg-deb -x haproxy_*.deb .
cat >main.mjs <<'JS'
import { spawn } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';

const listen = server => new Promise(done => server.listen(0, '127.0.0.1', () => done(server.address().port)));
const answers = status => createServer((request, response) => {
  request.resume().on('end', () => response.writeHead(status).end());
});
const [stops, works] = [await listen(answers(503)), await listen(answers(200))];
const free = createServer();
const port = await listen(free);
await new Promise(done => free.close(done));
writeFileSync('haproxy.cfg', `defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option redispatch 1
  retry-on conn-failure empty-response 503
frontend page
  bind 127.0.0.1:${port}
  default_backend chat
backend chat
  server first 127.0.0.1:${stops}
  server second 127.0.0.1:${works}
`);
const haproxy = spawn('usr/sbin/haproxy', ['-db', '-f', 'haproxy.cfg'], { stdio: 'ignore' });
const post = length => fetch(`http://127.0.0.1:${port}/`, { method: 'POST', body: 'x'.repeat(length) });
while (!(await post(1).catch(() => null))) await new Promise(done => setTimeout(done, 100));
for (const length of [100, 20_000]) {
  const statuses = new Set();
  for (let number = 0; number < 6; number++) statuses.add((await post(length)).status);
  console.log(`${length} bytes: ${[...statuses].sort().join(' and ')}`);
}
haproxy.kill();
process.exit(0);
JS
printed=$(timeout 60 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = '100 bytes: 200
20000 bytes: 200 and 503' ]
