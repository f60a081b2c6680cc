// Requests, each on a connection of its own, so that the wait for a connection counts.
import { request as open } from 'node:http';
import net from 'node:net';

/** Returns the status and the text of a response. */
export const request = (port, method, path, { cookie, body, signal } = {}) =>
  new Promise((resolve, reject) => {
    const headers = { 'content-type': 'application/json', ...(cookie && { cookie }) };
    const sent = open({ host: '127.0.0.1', port, method, path, headers, agent: false, signal }, response => {
      const pieces = [];
      response.on('data', piece => pieces.push(piece));
      response.on('error', reject);
      response.on('end', () => {
        const { statusCode: status, headers } = response;
        resolve({ status, headers, text: Buffer.concat(pieces).toString() });
      });
    });
    sent.on('error', reject);
    sent.end(body && JSON.stringify(body));
  });

/** Returns the cookie of a new user. */
export const newUser = async port => {
  const { headers } = await request(port, 'GET', '/');
  return headers['set-cookie'][0].split(';')[0];
};

export const message = (id, text) => ({ id, role: 'user', parts: [{ type: 'text', text }] });

/** Asks for one turn and reads its answer. */
export const turn = (port, cookie, chat, text, { id = `${chat}-m`, signal } = {}) =>
  request(port, 'POST', '/api/chat', { cookie, signal, body: { id: chat, message: message(id, text) } });

/** Sends the text of a request and does not read the response beyond the first piece, which `status` holds. */
export const unread = (port, text, body) => {
  const socket = net.connect(port, '127.0.0.1');
  const status = new Promise(resolve => {
    socket.once('data', piece => {
      socket.pause();
      resolve(/^HTTP\/1.1 (\d+)/.exec(piece)?.[1] ?? '?');
    });
    socket.once('error', error => resolve(error.code));
    socket.once('close', () => resolve('closed'));
  });
  socket.write(text);
  if (body) socket.write(body);
  return { socket, status };
};

export const head = (port, cookie, method, path, length) =>
  `${method} ${path} HTTP/1.1\r\nhost: 127.0.0.1:${port}\r\ncookie: ${cookie}\r\ncontent-type: application/json\r\n` +
  (length === undefined ? '\r\n' : `content-length: ${length}\r\n\r\n`);
