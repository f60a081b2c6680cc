// The real client, in the pinned versions. An npm alias per version (`ai-6.0.326`) lets them live
// side by side.

/** The version that the fixtures are recorded with. */
export const REFERENCE = '6.0.326';

/** Where v6 changed for a server: its first release, its strict schemas, the newest one. */
export const V6 = ['6.0.0', '6.0.197', '6.0.230', '6.0.235', REFERENCE];

/** The newest one, asked only about the canonical form: this crate has no wire version for it yet. */
export const NEWEST = '7.0.173';

/** Every installed version. */
export const VERSIONS = ['5.0.0', ...V6, NEWEST];

export async function loadClient(version) {
  if (!VERSIONS.includes(version)) {
    throw new Error(`version ${JSON.stringify(version)} is not installed: ${VERSIONS.join(', ')}`);
  }
  return import(`ai-${version}`);
}

/** The scripted models that a version publishes for tests. */
export const loadMocks = (version = REFERENCE) => import(`ai-${version}/test`);

/** Whether `version` is at least `major.minor.patch`; for behaviour that came in with a release. */
export function isSince(version, release) {
  const [a, b] = [version, release].map(v => v.split('.').map(Number));
  const differing = a.findIndex((n, i) => n !== b[i]);
  return differing === -1 || a[differing] > b[differing];
}
