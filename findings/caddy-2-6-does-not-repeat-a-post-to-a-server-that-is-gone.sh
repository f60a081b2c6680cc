#!/usr/bin/env bash
# Caddy 2.6.2 (Debian 12: 2.6.2-5), 2026-11-30.
#
# Behaviour: `reverse_proxy` with `lb_try_duration` and two upstreams. The one whose turn it is refuses connections. Each
# GET gets the 200 of the other one. Each POST with a body gets 502, although nothing of the request was sent: the attempt
# that could not connect has closed the body, and the next one cannot read it.
#
# What most would guess: a refused connection is harmless for any method, so that the other upstream gets the request.
#
# Whom it matters to: pages that post messages to several servers behind this version. Its health checks (`health_uri`)
# shorten the time in which it happens; a page must be able to send a message again.
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
const close = server => new Promise(done => server.close(done));
const works = createServer((request, response) => request.resume().on('end', () => response.end()));
const [upstream, free, gone] = [await listen(works), createServer(), createServer()];
const [port, nothing] = [await listen(free), await listen(gone)];
await Promise.all([close(free), close(gone)]);
writeFileSync('Caddyfile', `{
  admin off
  auto_https off
}
http://127.0.0.1:${port} {
  reverse_proxy 127.0.0.1:${nothing} 127.0.0.1:${upstream} {
    lb_policy round_robin
    lb_try_duration 10s
  }
}
`);
const env = { ...process.env, HOME: process.cwd() };
const arguments_ = ['run', '--config', 'Caddyfile', '--adapter', 'caddyfile'];
const caddy = spawn('usr/bin/caddy', arguments_, { env, stdio: 'ignore' });
const send = options => fetch(`http://127.0.0.1:${port}/`, options);
while (!(await send().catch(() => null))) await new Promise(done => setTimeout(done, 100));
for (const options of [{ method: 'GET' }, { method: 'POST', body: 'hello' }]) {
  const statuses = new Set();
  for (let number = 0; number < 6; number++) statuses.add((await send(options)).status);
  console.log(`${options.method}: ${[...statuses].sort().join(' and ')}`);
}
caddy.kill();
process.exit(0);
JS
printed=$(timeout 120 node main.mjs)
printf '%s\n' "$printed"
[ "$printed" = 'GET: 200
POST: 502' ]
