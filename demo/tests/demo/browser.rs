//! A person's path through both pages, the demo's own and the Next.js one, in a real browser; and
//! what a hostile page in the same browser reaches.
//!
//! Building the Next.js app takes a minute, so this runs where it is asked for: with `CI=true`, or
//! with `BROWSER=1`. It needs Node, and `chromium-headless-shell` or `chromium` in `/usr/bin`.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use test_support::external_processes::{
    Demo, browser_scripts, built_example, node_project, run_node, wait_until,
};

#[test]
fn a_person_gets_through_both_pages() {
    run_with_both_pages(&["paths.mjs", "users.mjs"]);
}

#[test]
fn both_pages_show_a_chat_again_after_a_reload_and_in_a_second_tab() {
    run_with_both_pages(&["reopened.mjs"]);
}

#[test]
fn both_pages_show_each_part_of_a_live_answer_once_after_a_reload_a_cut_and_in_a_second_tab() {
    run_with_both_pages(&["live.mjs"]);
}

#[test]
fn both_pages_show_the_questions_of_an_agent_inside_the_agent_and_their_answers() {
    run_with_both_pages(&["inner-agents.mjs"]);
}

#[test]
fn both_pages_go_on_after_the_demo_is_killed_and_started_again() {
    let (Some(browser), Some(next)) = (browser_scripts(), built_next_app()) else { return };
    let program = built_example("chat", &[]);
    let mut arguments = vec!["restarts.mjs", "--program", program.to_str().unwrap()];
    arguments.extend(["--next", next.to_str().unwrap()]);
    let screenshots = std::env::var("SCREENSHOTS");
    if let Ok(folder) = &screenshots {
        arguments.extend(["--screenshots", folder]);
    }
    let printed = run_node(&browser, &arguments);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}

#[test]
fn a_second_browser_of_the_user_shows_what_the_first_one_does_without_a_reload() {
    let Some(browser) = browser_scripts() else { return };
    let demo = Demo::start();
    let printed = run_node(&browser, &["followed.mjs", &demo.url, demo.gates().to_str().unwrap()]);
    assert!(printed.ends_with("each change was shown\n"), "{printed}");
}

#[test]
fn a_hostile_page_reaches_nothing_of_the_demo() {
    run_with_both_pages(&["hostile-pages.mjs"]);
}

#[test]
fn cookies_pass_through_the_next_app_in_both_directions() {
    let (Some(_), Some(next)) = (browser_scripts(), built_next_app()) else {
        return;
    };
    let chat_server = TcpListener::bind("127.0.0.1:0").unwrap();
    let app = NextApp::start(next, &format!("http://{}", chat_server.local_addr().unwrap()));
    let answering = std::thread::spawn(move || {
        // The app asks once whether the page of the chat server sets cookies.
        let mut connection = chat_server.accept().unwrap().0;
        let asked = read_head(&mut connection);
        assert!(asked.starts_with("head / "), "{asked}");
        let none = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        connection.write_all(none.as_bytes()).unwrap();
        drop(connection);
        let mut connection = chat_server.accept().unwrap().0;
        let request = read_head(&mut connection);
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n";
        let cookies = "Set-Cookie: user=a; Expires=Wed, 01 Jan 2098 00:00:00 GMT\r\n\
                       Set-Cookie: chat=b; HttpOnly; SameSite=Strict\r\n\r\n";
        connection.write_all(format!("{head}{cookies}").as_bytes()).unwrap();
        request
    });
    let mut browser = TcpStream::connect(app.url.strip_prefix("http://").unwrap()).unwrap();
    let request = "GET /api/chat/1/stream HTTP/1.1\r\nHost: localhost\r\n\
                   Cookie: user=1; chat=2\r\nConnection: close\r\n\r\n";
    browser.write_all(request.as_bytes()).unwrap();
    let response = read_head(&mut browser);
    let cookies: Vec<&str> =
        response.lines().filter_map(|line| line.strip_prefix("set-cookie: ")).collect();
    let expected =
        ["user=a; expires=wed, 01 jan 2098 00:00:00 gmt", "chat=b; httponly; samesite=strict"];
    assert_eq!(cookies, expected, "{response}");
    let request = answering.join().unwrap();
    assert!(request.contains("\r\ncookie: user=1; chat=2\r\n"), "{request}");
}

/// Runs scripts of `tests/browser` one after the other with a fresh demo, and the Next.js app before
/// it. Fails if a case of a script fails.
fn run_with_both_pages(scripts: &[&str]) {
    let (Some(browser), Some(next)) = (browser_scripts(), built_next_app()) else {
        return;
    };
    let demo = Demo::start();
    let app = NextApp::start(next, &demo.url);
    let screenshots = std::env::var("SCREENSHOTS");
    for script in scripts {
        let mut arguments = vec![*script, "--demo", &demo.url, "--next", &app.url];
        arguments.extend(["--gates", demo.gates().to_str().unwrap()]);
        if let Ok(folder) = &screenshots {
            arguments.extend(["--screenshots", folder]);
        }
        let printed = run_node(&browser, &arguments);
        assert!(printed.ends_with(" 0 failed\n"), "{printed}");
    }
}

/// Reads the head of a request or response, in lower case.
fn read_head(connection: &mut TcpStream) -> String {
    let lines = BufReader::new(connection).lines().map(Result::unwrap);
    let head: String =
        lines.take_while(|line| !line.is_empty()).map(|line| line + "\r\n").collect();
    head.to_lowercase()
}

/// The Next.js app, built once for all tests, which checks its types, with `packages/client` as it is now.
/// `None` if it cannot be built here.
fn built_next_app() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let client = node_project("packages/client")?;
        let next = node_project("examples/nextjs")?;
        // npm has copied the package when it was installed. Not by way of its own `dist`, which another test packs.
        let installed = next.join("node_modules/ui-message-stream-client/dist");
        run_npm(&client, &["exec", "--", "tsc", "--outDir", installed.to_str().unwrap()]);
        run_npm(&next, &["run", "build"]);
        Some(next)
    });
    folder.as_deref()
}

fn run_npm(folder: &Path, arguments: &[&str]) {
    let output = Command::new("npm").args(arguments).current_dir(folder).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "npm {arguments:?}: {printed}\n{errors}");
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
        wait_until("the Next.js app listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        app
    }
}

impl Drop for NextApp {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
