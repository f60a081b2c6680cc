//! A person's path through both pages, the demo's own and the Next.js one, in a real browser; and
//! what a hostile page in the same browser reaches.
//!
//! Building the Next.js app takes a minute, so this runs where it is asked for: with `CI=true`, or
//! with `BROWSER=1`. It needs Node, and Chromium at `/usr/bin/chromium`.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use test_support::external_processes::{Demo, missing, node_project, run_node, say};

#[test]
fn a_person_gets_through_both_pages() {
    let Some(browser) = browser() else {
        return;
    };
    let Some(next) = node_project("examples/nextjs") else {
        return;
    };
    for script in ["typecheck", "build"] {
        let output = Command::new("npm").args(["run", script]).current_dir(&next).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "npm run {script}: {printed}\n{errors}");
    }
    let demo = Demo::start();
    let app = NextApp::start(&next, &demo.url);
    let mut arguments = vec!["paths.mjs", "--demo", &demo.url, "--next", &app.url];
    let screenshots = std::env::var("SCREENSHOTS");
    if let Ok(folder) = &screenshots {
        arguments.extend(["--screenshots", folder]);
    }
    let printed = run_node(&browser, &arguments);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}

#[test]
fn a_hostile_page_reaches_nothing_of_the_demo() {
    let Some(browser) = browser() else {
        return;
    };
    let demo = Demo::start();
    let printed = run_node(&browser, &["hostile-pages.mjs", "--demo", &demo.url]);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}

/// The scripts that drive a browser, where that is asked for and can be done.
fn browser() -> Option<PathBuf> {
    let is_set = |name: &str, value: &str| std::env::var(name).as_deref() == Ok(value);
    if !is_set("CI", "true") && !is_set("BROWSER", "1") {
        say("SKIPPED, `BROWSER=1 cargo test -p demo browser` takes a browser to both pages");
        return None;
    }
    if !Path::new("/usr/bin/chromium").exists() {
        missing("Chromium is not at /usr/bin/chromium");
        return None;
    }
    node_project("tests/browser")
}

/// The built Next.js app, running on a port of its own.
struct NextApp {
    process: Child,
    url: String,
}

impl NextApp {
    fn start(folder: &Path, chat_server: &str) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let process = Command::new("node")
            .args(["node_modules/next/dist/bin/next", "start", "-H", "127.0.0.1", "-p"])
            .arg(port.to_string())
            .env("CHAT_SERVER", chat_server)
            .current_dir(folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let app = NextApp { process, url: format!("http://127.0.0.1:{port}") };
        for _ in 0..300 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return app;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        panic!("the Next.js app does not listen");
    }
}

impl Drop for NextApp {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
