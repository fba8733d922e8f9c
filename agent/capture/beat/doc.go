// Package beat is the socket of the capture service: agents report on it that their Envoy is
// alive and that they answer DNS queries, and people ask it for the service's status. It knows no packet filter.
//
// A report can only keep what is captured already from being switched off: no message names a
// user, a port of an application or an address. Who may connect is the kernel's to say, see
// agent/peercred.
//
// [Server.Run] has one goroutine for each connection, of which there are few; [Client.Run] has
// none of its own.
package beat
