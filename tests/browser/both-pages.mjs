import { join } from 'node:path';
import { SCREENS } from './chromium.mjs';

/**
 * Runs cases on both pages, the demo's and the Next.js one, each on both screens: the four at the same time, and the
 * cases of each one after the other. `runCases` gets the address of a page, the name of a screen, a function that runs
 * a case and returns whether it passed, and one that takes a picture. Prints what has failed.
 */
export async function onBothPages(what, { demo, next, only = '', screenshots }, runCases) {
  let [ran, failed] = [0, 0];
  const runOn = async (site, url, screen) => {
    const runCase = async (name, act) => {
      const title = `${site} ${screen} ${name}`;
      if (!title.includes(only)) return true;
      ran += 1;
      try {
        await act();
        return true;
      } catch (error) {
        failed += 1;
        for (const line of error.message.split('\n')) console.log(`FAILED ${title}: ${line}`);
        return false;
      }
    };
    const shoot = async (page, moment) => {
      if (!screenshots) return;
      const file = `${what} ${site} ${screen} ${moment}.png`.replaceAll(' ', '-');
      await page.screenshot({ path: join(screenshots, file) });
    };
    await runCases({ url, screen, runCase, shoot });
  };
  const all = Object.entries({ demo, next }).flatMap(([site, url]) =>
    Object.keys(SCREENS).map(screen => runOn(site, url, screen)),
  );
  await Promise.all(all);
  console.log(`${what}: ${ran} ran, ${failed} failed`);
  if (failed > 0 || ran === 0) process.exitCode = 1;
}
