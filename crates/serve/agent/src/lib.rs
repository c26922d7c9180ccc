//! The node agent: CNI events, enrollment of pods, rules and the hand-over to the proxy.
//! It never carries a pod's traffic.
