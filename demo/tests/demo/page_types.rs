//! The types of the Next.js page are made from the schemas of the demo's tools.

use std::fs::File;
use std::process::{Command, Stdio};

use test_support::external_processes::{DataFolder, built_example, node_project};
use test_support::repository;

#[test]
fn the_types_of_the_next_js_page_are_those_of_the_tools() {
    let Some(client) = node_project("packages/client") else { return };
    let folder = DataFolder::new();
    let schemas = folder.path().join("schemas.json");
    let printed = Command::new(built_example("chat", &[]))
        .arg("schemas")
        .env("CHAT_STORE", "memory")
        .stdout(File::create(&schemas).unwrap())
        .status();
    assert!(printed.unwrap().success());
    let types = Command::new("node")
        .arg(client.join("bin/types.mjs"))
        .stdin(File::open(&schemas).unwrap())
        .stderr(Stdio::inherit())
        .output()
        .unwrap();
    let types = String::from_utf8(types.stdout).unwrap();
    let file = repository().join("examples/nextjs/app/tools.d.ts");
    let kept = std::fs::read_to_string(&file).unwrap();
    let command = "cargo run --example chat -- schemas | node packages/client/bin/types.mjs > examples/nextjs/app/tools.d.ts";
    assert_eq!(kept, types, "the types are not those of the tools: {command}");
}
