// Package wallclock reads the wall clock of this machine, for everything that
// compares it with a time in a certificate or a file. Its times have no monotonic
// reading: a clock that was set is seen at once, where [time.Time.Before] on the
// results of [time.Now] would go on by the monotonic clock and not notice.
//
// It is not for measuring how long something takes, nor for timers: those go by
// [time.Now], which a clock that is set does not disturb.
//
// The build tag fairlead_clocktest makes a binary for tests whose wall clock is
// shifted while it runs; released binaries are built without it.
package wallclock
