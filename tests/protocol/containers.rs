//! What `deploy/` sets exists: its variables in the demo, its nginx in the documentation.

use std::fs::{read_dir, read_to_string};

use test_support::repository;

#[test]
fn each_variable_of_the_compose_file_and_of_the_image_is_one_that_the_demo_reads() {
    let read = |file: &str| read_to_string(repository().join(file)).unwrap();
    let compose = read("deploy/compose.yaml");
    let (_, environment) = compose.split_once("\n  environment:\n").unwrap();
    let mut names: Vec<&str> = environment
        .lines()
        .take_while(|line| line.starts_with("    "))
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(|line| line.trim_start().split(':').next().unwrap())
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    let image = read("deploy/Dockerfile");
    let of_image = image.lines().filter_map(|line| line.strip_prefix("ENV ")?.split('=').next());
    names.extend(of_image);
    let demo: String = read_dir(repository().join("demo/src"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.extension().is_some_and(|it| it == "rs"))
        .map(|path| read_to_string(path).unwrap())
        .collect();
    for name in names {
        assert!(demo.contains(&format!("text_of(\"{name}\")")), "the demo does not read {name}");
    }
}

#[test]
fn the_nginx_of_the_compose_file_is_that_of_the_documentation() {
    let read = |file: &str| read_to_string(repository().join(file)).unwrap();
    let page = read("docs/operations.md");
    let block = page.split("```nginx\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let expected =
        block.replace("127.0.0.1:3000", "chat-1:3000").replace("127.0.0.1:3001", "chat-2:3000");
    assert_eq!(read("deploy/nginx.conf"), expected);
}
