// signature.json: what the SDK signs, recomputed here, and then put to both SDKs, which must run the
// tool for the true signature and refuse a tampered one.
import { createHash, createHmac } from 'node:crypto';
import { isDeepStrictEqual } from 'node:util';
import { NEWEST, REFERENCE } from '../clients.mjs';
import { isShownAsIs } from '../shown-as-is.mjs';
import { runsTheTool, signedBy } from '../signing.mjs';
import { readJson, recorded } from './fixtures.mjs';

const PATH = 'signature.json';

export default async function signature(_client, check) {
  const { note, vectors, signedButNotShown } = readJson(PATH);
  const got = {
    sdk: { lines: REFERENCE, jsonArray: NEWEST },
    note,
    vectors: await inTurn(vectors, recordVector),
    signedButNotShown: await inTurn(signedButNotShown, recordUnsafe),
  };
  const file = recorded(PATH, got);
  check(PATH, isDeepStrictEqual(got, file), JSON.stringify(got));

  for (const vector of file.vectors) {
    const { note, secret, canonicalInput, inputDigest, lines, jsonArray, runs } = vector;
    const digest = createHash('sha256').update(canonicalInput).digest('base64url');
    const hmac = payload => createHmac('sha256', secret).update(payload).digest('base64url');
    const recomputed = [digest, hmac(lines.payload), hmac(jsonArray.payload)];
    const kept = [inputDigest, lines.signature, jsonArray.signature];
    check(`signature ${note}`, isDeepStrictEqual(recomputed, kept));
    check(`signature of what is shown: ${note}`, isShownAsIs(vector.inputText));
    check(`signatures accepted: ${note}`, runs[REFERENCE].lines && runs[NEWEST].jsonArray);
    const tampered = runs[REFERENCE].tampered || runs[NEWEST].tampered;
    check(`tampered signature refused: ${note}`, !tampered);
  }
  for (const { note, inputText } of file.signedButNotShown) {
    check(`signed but not shown as it is: ${note}`, !isShownAsIs(inputText));
  }
}

async function recordVector(vector) {
  const { note, secret, approvalId, toolCallId, toolName, inputText } = vector;
  const { canonicalInput, ...lines } = await signedBy(REFERENCE, vector);
  const { canonicalInput: again, ...jsonArray } = await signedBy(NEWEST, vector);
  if (again !== canonicalInput) throw new Error(`${note}: two canonical forms`);
  const inputDigest = createHash('sha256').update(canonicalInput).digest('base64url');
  const tampered = (lines.signature[0] === 'A' ? 'B' : 'A') + lines.signature.slice(1);
  const runs = async version => ({
    lines: await runsTheTool(version, vector, lines.signature),
    jsonArray: await runsTheTool(version, vector, jsonArray.signature),
    tampered: await runsTheTool(version, vector, tampered),
  });
  return {
    note,
    secret,
    approvalId,
    toolCallId,
    toolName,
    inputText,
    canonicalInput,
    inputDigest,
    lines,
    jsonArray,
    runs: { [REFERENCE]: await runs(REFERENCE), [NEWEST]: await runs(NEWEST) },
  };
}

async function recordUnsafe({ note, inputText }) {
  const call = { secret: 's', approvalId: 'a', toolCallId: 'c', toolName: 't', inputText };
  const { canonicalInput } = await signedBy(REFERENCE, call);
  return { note, inputText, canonicalInput };
}

/** One call at a time: the hash and the HMAC are listened to. */
async function inTurn(items, record) {
  const results = [];
  for (const item of items) results.push(await record(item));
  return results;
}
