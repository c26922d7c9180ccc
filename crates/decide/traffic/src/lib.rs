//! Per connection: resolve the destination, authorise, choose the tunnel and the pool key.
//! It never owns a socket.
