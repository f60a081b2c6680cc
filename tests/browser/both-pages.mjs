import { join } from 'node:path';
import { SCREENS } from './chromium.mjs';

/**
 * Runs cases on both pages, the demo's and the Next.js one, each on both screens: the four at the same time, and the
 * cases of each one after the other. `runAll` gets the address of a page, the settings of a browser, a function that
 * runs a case and returns whether it passed, and one that takes a picture. Prints what has failed.
 */
export async function onBothPages(what, { demo, next, only = '', screenshots }, runAll) {
  let [ran, failed] = [0, 0];
  const runOn = (site, url, screen) => {
    const runs = async (name, act) => {
      const title = `${site} ${screen} ${name}`;
      if (!title.includes(only)) return true;
      ran += 1;
      try {
        await act();
        return true;
      } catch (error) {
        failed += 1;
        console.log(`FAILED ${title}: ${error.message}`);
        return false;
      }
    };
    const shoot = async (page, moment) => {
      if (!screenshots) return;
      const file = `${what} ${site} ${screen} ${moment}.png`.replaceAll(' ', '-');
      await page.screenshot({ path: join(screenshots, file) });
    };
    return runAll({ url, options: SCREENS[screen], runs, shoot });
  };
  const all = Object.entries({ demo, next }).flatMap(([site, url]) =>
    Object.keys(SCREENS).map(screen => runOn(site, url, screen)),
  );
  await Promise.all(all);
  console.log(`${what}: ${ran} ran, ${failed} failed`);
  process.exitCode = failed ? 1 : 0;
}
