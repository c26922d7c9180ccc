use super::*;

const MARKER: &[u8] = b"marker";
const TLS_PORT: u16 = 15008;

/// An Ethernet frame with an IPv4 TCP segment.
fn segment(ports: (u16, u16), sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(40 + payload.len()).unwrap();
    let mut frame = vec![0; 12];
    frame.extend([0x08, 0x00, 0x45, 0]);
    frame.extend(length.to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(ports.0.to_be_bytes());
    frame.extend(ports.1.to_be_bytes());
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

fn data(sequence: u32, payload: &[u8]) -> Vec<u8> {
    segment((1000, 80), sequence, 0x10, payload)
}

#[track_caller]
fn check(frames: &[Vec<u8>], markers: usize, tls_records: usize) {
    let mut analysis = Analysis::new(MARKER, TLS_PORT);
    frames.iter().for_each(|frame| analysis.frame(frame));
    let seen = analysis.seen().unwrap();
    assert_eq!((seen.packets, seen.marker_in_plain, seen.tls_records), (frames.len(), markers, tls_records));
}

#[test]
fn a_marker_is_found_wherever_segments_cut_it() {
    check(&[data(1, b"a marker"), data(9, b" and a marker.")], 2, 0);
    check(&[data(1, b"a mar"), data(6, b"ker")], 1, 0);
    check(&[data(1, b"m"), data(2, b"a"), data(3, b"r"), data(4, b"k"), data(5, b"e"), data(6, b"r")], 1, 0);
    check(&[data(6, b"ker"), data(1, b"a mar")], 1, 0);
    check(&[data(u32::MAX - 1, b"mark"), data(2, b"er")], 1, 0);
}

#[test]
fn repetition_counts_once_and_a_gap_joins_nothing() {
    check(&[data(1, b"marker"), data(1, b"marker"), data(3, b"rker")], 1, 0);
    check(&[data(1, b"mar"), data(1, b"marker")], 1, 0);
    check(&[data(1, b"mar"), data(5, b"ker")], 0, 0);
}

#[test]
fn directions_and_connections_are_kept_apart() {
    let back = segment((80, 1000), 4, 0x10, b"ker");
    check(&[data(1, b"mar"), back], 0, 0);
    let again = segment((1000, 80), 500, 0x02, b"");
    check(&[data(1, b"marker"), again, data(501, b"marker")], 2, 0);
}

#[test]
fn other_packets_are_searched_one_by_one() {
    let mut datagram = data(1, b"a marker");
    datagram[23] = 17;
    let mut fragment = data(1, b"a marker");
    fragment[21] = 9;
    let mut arp = data(1, b"a marker");
    arp[13] = 6;
    check(&[datagram, fragment, arp], 3, 0);
}

#[test]
fn padding_is_not_payload() {
    let mut frame = data(1, b"mar");
    frame.extend(b"ker");
    check(&[frame], 0, 0);
}

#[test]
fn tls_counts_on_its_port_and_only_at_the_start_of_a_segment() {
    let record = [22, 3, 1, 0, 5, 1, 2, 3, 4, 5];
    let on = |ports| segment(ports, 1, 0x18, &record);
    check(&[on((1000, TLS_PORT)), on((TLS_PORT, 1000)), on((1000, 443))], 0, 2);
    let not = |bytes: &[u8]| segment((1000, TLS_PORT), 1, 0x18, bytes);
    check(&[not(b"GET / HTTP/1.1"), not(&[22, 3, 1, 0xff, 0xff, 0]), not(&[22, 3]), not(&[])], 0, 0);
}

#[test]
fn no_cut_of_a_frame_makes_it_panic() {
    let mut six = data(1, b"marker");
    (six[12], six[13], six[14]) = (0x86, 0xdd, 0x60);
    let mut tagged = data(1, b"marker");
    tagged.splice(12..12, [0x81, 0, 0, 1]);
    check(std::slice::from_ref(&tagged), 1, 0);
    for frame in [data(1, b"marker"), six, tagged] {
        let mut analysis = Analysis::new(MARKER, TLS_PORT);
        for length in 0..frame.len() {
            analysis.frame(&frame[..length]);
            for at in 0..length {
                let mut damaged = frame[..length].to_vec();
                damaged[at] = 0xff;
                analysis.frame(&damaged);
            }
        }
        assert!(analysis.seen().is_ok());
    }
}
