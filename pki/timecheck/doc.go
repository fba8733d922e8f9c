// Package timecheck compares the wall clock of the control plane with other evidence of the
// time: the clocks that hosts report, a clock of the kernel that nobody sets, and the time
// that was saved before the start.
//
// Each host has a vote, and each address has one vote however many hosts are behind it. If the
// median of at least three differs by more than Tolerance, signing is on hold until the clocks
// agree or a person confirms the server's clock (Accept). If the wall clock differs from the
// kernel's clock, or is behind the saved time, there is an alarm and nothing more: live
// migration and a restored disk have the same effect.
//
// It sets no clock and checks no certificate. The caller is the composition of the control
// plane, which asks it before it signs. Run has the only goroutine; all methods may be called
// concurrently.
package timecheck
