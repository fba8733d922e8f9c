// Package timecheck holds the wall clock of the control plane against what else is
// known of the time: what hosts say that their clocks show, a clock of the kernel that
// nobody sets, and the time that was saved before the start.
//
// Hosts have a vote each, and an address has one however many hosts are behind it: a
// median of at least three that is more than Tolerance off puts signing on hold, until
// they agree or a person says that the server's clock is right (Accept). A wall clock
// that parts from the kernel's clock, or is behind the saved time, raises an alarm and
// no more: live migration and a restored disk do that, too.
//
// It sets no clock and judges no certificate. The caller is the composition of the
// control plane, which asks it before it signs. Run has the only goroutine; all
// methods may be called concurrently.
package timecheck
