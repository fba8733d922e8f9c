//go:build !linux

package files

import "errors"

// newSystemWatcher has nothing to offer here: files are found by scanning.
func newSystemWatcher() (watcher, error) {
	return nil, errors.New("events of the file system are read on Linux only")
}
