//! How many descriptors the process may have.

/// As many as it may give itself. A shell gives 1024 for the sake of old programs, and each client of a node takes one.
pub fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain calls with a structure that lives here.
    let raised = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 && {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0
        }
    };
    if !raised {
        tracing::debug!("the limit on descriptors stays as it is");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn as_many_descriptors_as_may_be_can_be_had() {
        super::raise_limit();
        let text = std::fs::read_to_string("/proc/self/limits").expect("every Linux tells");
        let line = text.lines().find(|line| line.starts_with("Max open files")).expect("it is told");
        let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
        assert_eq!(numbers[0], numbers[1]);
    }
}
