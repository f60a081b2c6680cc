// The real client, in the pinned versions. Each version has an npm alias (`ai-6.0.326`), so that all
// of them can be installed.

/** The version with which the fixtures are recorded. */
export const REFERENCE = '6.0.326';

/** The versions in which v6 changed for a server: the first release, strict schemas, the newest. */
export const V6 = ['6.0.0', '6.0.197', '6.0.230', '6.0.235', REFERENCE];

/** The newest version. */
export const NEWEST = '7.0.173';

/** The versions of v7 that differ for a server: with strict schemas, as templates pin them, and the newest. */
export const V7 = ['7.0.15', '7.0.31', NEWEST];

/** Versions in which v7 changed besides: the first, and those before and after fields that it introduced. */
const OTHER_V7 = ['7.0.0', '7.0.77', '7.0.120'];

/** Every installed version. */
export const VERSIONS = ['5.0.0', ...V6, ...V7, ...OTHER_V7];

export async function loadClient(version) {
  if (!VERSIONS.includes(version)) {
    throw new Error(`version ${JSON.stringify(version)} is not installed: ${VERSIONS.join(', ')}`);
  }
  return import(`ai-${version}`);
}

/** The scripted models that the package of a version contains for tests. */
export const loadMocks = (version = REFERENCE) => import(`ai-${version}/test`);

/** Whether `version` is the release of its line or later; for behaviour that one release of each line introduced. */
export function isSince(version, releases) {
  const release = releases.find(release => release[0] === version[0]);
  const [a, b] = [version, release].map(v => v.split('.').map(Number));
  const differing = a.findIndex((n, i) => n !== b[i]);
  return differing === -1 || a[differing] > b[differing];
}
