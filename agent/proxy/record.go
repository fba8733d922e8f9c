package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/pki/durable"
)

// record is the file about a running Envoy. Process ids are reused, so it also has the start
// time and the boot.
type record struct {
	PID int `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat: clock ticks since boot.
	StartTime uint64 `json:"start_time"`
	BootID    string `json:"boot_id"`
	Binary    string `json:"binary"`
	// Fingerprint is the Config's at the time of the start.
	Fingerprint string `json:"fingerprint"`
}

func (r record) save(path string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("recording the Envoy process: %w", err)
	}
	if err := durable.WriteFile(durable.OS{}, path, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording the Envoy process: %w", err)
	}
	return nil
}

func loadRecord(path string) (record, error) {
	b, err := os.ReadFile(path) //nolint:gosec // our own file
	if err != nil {
		return record{}, fmt.Errorf("reading the record of the Envoy process: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil {
		return record{}, fmt.Errorf("reading the record of the Envoy process %q: %w", path, err)
	}
	return r, nil
}

// errGone means that a process is not the recorded one.
var errGone = errors.New("not the recorded process")

// verify checks that the recorded process is alive and is the same one.
func (r record) verify() error {
	boot, err := bootID()
	if err != nil {
		return err
	}
	if r.PID <= 1 || r.BootID != boot {
		return fmt.Errorf("%w: recorded before the last boot", errGone)
	}
	start, state, err := procStat(r.PID)
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if start != r.StartTime || state == "Z" || state == "X" {
		return fmt.Errorf("%w: process %d is another one or has exited", errGone, r.PID)
	}
	exe, err := os.Readlink(procPath(r.PID, "exe"))
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	// The file may have been replaced by an upgrade meanwhile.
	if exe = strings.TrimSuffix(exe, " (deleted)"); exe != r.Binary {
		return fmt.Errorf("%w: process %d runs %q", errGone, r.PID, exe)
	}
	return nil
}

// newRecord describes a running process.
func newRecord(pid int, binary, fingerprint string) (record, error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	start, _, err := procStat(pid)
	if err != nil {
		return record{}, err
	}
	return record{PID: pid, StartTime: start, BootID: boot, Binary: resolved(binary), Fingerprint: fingerprint}, nil
}

// resolved is the path as /proc/PID/exe shows it.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}

// search finds an Envoy that runs with our bootstrap and has no record: the agent was killed
// after it started Envoy and before it wrote the record.
func search(binary, bootstrapPath string) (int, bool) {
	binary = resolved(binary)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return 0, false
	}
	for _, dir := range dirs {
		exe, err := os.Readlink(filepath.Join(dir, "exe"))
		if err != nil || strings.TrimSuffix(exe, " (deleted)") != binary {
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !slices.Contains(strings.Split(string(b), "\x00"), bootstrapPath) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err == nil && !strings.Contains(string(b), "--mode\x00validate") {
			return pid, true
		}
	}
	return 0, false
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func procPath(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// procStat reads the start time and the state of a process.
func procStat(pid int) (start uint64, state string, err error) {
	b, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return 0, "", fmt.Errorf("inspecting process %d: %w", pid, err)
	}
	// The command's name, in parentheses, may have anything in it.
	end := strings.LastIndexByte(string(b), ')')
	if end < 0 {
		return 0, "", fmt.Errorf("inspecting process %d: unexpected format of /proc/PID/stat: %.80q", pid, b)
	}
	fields := strings.Fields(string(b[end+1:]))
	const stateField, startField = 0, 19 // fields 3 and 22 of the whole line
	if len(fields) <= startField {
		return 0, "", fmt.Errorf("inspecting process %d: unexpected format of /proc/PID/stat: %.80q", pid, b)
	}
	start, err = strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return 0, "", fmt.Errorf("inspecting process %d: %w", pid, err)
	}
	return start, fields[stateField], nil
}
