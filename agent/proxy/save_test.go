package proxy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRunsWithoutRecord: an Envoy whose record cannot be saved runs all the same; the record that is saved
// later is the one of the Envoy that runs.
func TestRunsWithoutRecord(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	dir := filepath.Join(filepath.Dir(c.BootstrapPath), "later") // a directory that is missing stands for a disk that is full
	c.StateFile = filepath.Join(dir, "envoy.pid.json")
	saves := make(chan func() error, 2)
	c.Save = func(_ context.Context, write func() error) { saves <- write }
	next := func() func() error {
		t.Helper()
		select {
		case write := <-saves:
			return write
		case <-time.After(deadline):
			t.Fatal("nothing is to be saved")
			return nil
		}
	}
	r := run(t, c)
	first := r.live(t, 0)
	if err := next()(); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the record was saved: %v", err)
	}
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second := r.live(t, first.PID)
	write := next()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	record, err := loadRecord(c.StateFile)
	if err != nil || record.PID != second.PID {
		t.Errorf("the record is of process %d, want %d: %v", record.PID, second.PID, err)
	}
}

// TestBootstrapThatCannotBeWritten: Envoy is started with the one that is there.
func TestBootstrapThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	// No name of a temporary file fits beside this one, which stands for a disk that is full.
	long := filepath.Join(t.TempDir(), strings.Repeat("b", 250))
	if err := os.Rename(c.BootstrapPath, long); err != nil {
		t.Fatal(err)
	}
	c.BootstrapPath = long
	c.Renew = func(context.Context) (Launch, error) {
		return Launch{Bootstrap: []byte("no bootstrap"), Fingerprint: "two"}, nil
	}
	r := run(t, c)
	r.live(t, 0)
	if record, err := loadRecord(c.StateFile); err != nil || record.Fingerprint != c.Fingerprint {
		t.Errorf("it was started with %q, want %q: %v", record.Fingerprint, c.Fingerprint, err)
	}
}
