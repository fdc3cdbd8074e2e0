//! How long a set of copies takes, when each goes as fast as drives and network interfaces let it.
//! A fluid: at any moment every copy gets its fair part of the narrowest thing it goes through (max-min fairness), and
//! what that leaves free goes to others. It is what many streams with equal rights come to.

/// Bytes to be moved through resources, each named by its number. One that is gone through twice is named twice.
#[derive(Debug, Clone)]
pub struct Flow {
    pub bytes: f64,
    pub through: Vec<usize>,
}

/// Seconds until the last flow is done. `rates` are bytes per second of each resource.
pub fn seconds(mut flows: Vec<Flow>, rates: &[f64]) -> f64 {
    let mut time = 0.0;
    while !flows.is_empty() {
        let speeds = speeds(&flows, rates);
        let next =
            flows.iter().zip(&speeds).map(|(flow, speed)| flow.bytes / speed).fold(f64::INFINITY, f64::min);
        assert!(next.is_finite(), "every flow goes on");
        time += next;
        for (flow, speed) in flows.iter_mut().zip(&speeds) {
            flow.bytes -= speed * next;
        }
        // What is done but for rounding is done: a flow is gigabytes.
        flows.retain(|flow| flow.bytes > 1.0);
    }
    time
}

/// The speed of each flow: the resource with the least for each of its flows sets theirs, then the next.
fn speeds(flows: &[Flow], rates: &[f64]) -> Vec<f64> {
    let mut left = rates.to_vec();
    let mut users = vec![0usize; rates.len()];
    for &resource in flows.iter().flat_map(|flow| &flow.through) {
        users[resource] += 1;
    }
    let mut speeds: Vec<Option<f64>> = vec![None; flows.len()];
    loop {
        let tightest = (0..rates.len())
            .filter(|&resource| users[resource] > 0)
            .map(|resource| (left[resource] / users[resource] as f64, resource))
            .min_by(|one, other| one.0.total_cmp(&other.0));
        let Some((speed, tightest)) = tightest else { break };
        for (flow, own) in flows.iter().zip(&mut speeds) {
            if own.is_none() && flow.through.contains(&tightest) {
                *own = Some(speed);
                for &resource in &flow.through {
                    left[resource] = (left[resource] - speed).max(0.0);
                    users[resource] -= 1;
                }
            }
        }
    }
    speeds.into_iter().map(|speed| speed.expect("every flow goes through something")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bytes: f64, through: &[usize]) -> Flow {
        Flow { bytes, through: through.to_vec() }
    }

    #[test]
    fn a_flow_alone_goes_as_fast_as_its_narrowest_place() {
        assert_eq!(seconds(vec![flow(1000.0, &[0, 1])], &[100.0, 50.0]), 20.0);
        assert_eq!(seconds(vec![flow(1000.0, &[0, 0])], &[100.0]), 20.0, "twice through the same");
    }

    #[test]
    fn what_one_flow_cannot_use_goes_to_the_other() {
        // The first is held to 10 by resource 1, so the second has 90 of resource 0.
        let flows = vec![flow(100.0, &[0, 1]), flow(900.0, &[0])];
        assert_eq!(seconds(flows, &[100.0, 10.0]), 10.0);
    }

    #[test]
    fn when_a_flow_ends_the_others_go_faster() {
        // Half each for 2 s, then the longer one alone.
        let flows = vec![flow(100.0, &[0]), flow(300.0, &[0])];
        assert_eq!(seconds(flows, &[100.0]), 4.0);
    }
}
