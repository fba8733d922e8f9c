// Package keeper is the process that keeps the table of packet capture: it loads the table that
// was confirmed, and puts it back when another program changes it, or the routes that belong to it.
// It is the only long-lived process with CAP_NET_ADMIN, and therefore small: what it captures is in
// files that only root can write, and nothing that it receives widens that.
//
// [Keeper.Run] has one goroutine that owns the table, and some that wake it: those of
// [capture.Kernel.Watch]. Commands of people (fairlead capture apply, confirm, remove) change the
// table themselves, under the lock of the state directory; the keeper looks at the directory
// after each of their changes.
package keeper
