package proxy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fairlead/fairlead/pki/durable"
)

// record is the file about a running Envoy. Process ids are reused, so it also has the start
// time and the boot.
type record struct {
	PID int `json:"pid"`
	// PIDNamespace is where PID has its meaning, pid:[NUMBER]; earlier releases did not record it.
	PIDNamespace string `json:"pid_namespace,omitempty"`
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

// open returns the recorded process, if it is alive and the same one.
func (r record) open() (*handle, error) {
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if r.PID <= 1 || r.BootID != boot {
		return nil, fmt.Errorf("%w: recorded before the last boot", errGone)
	}
	// The id means nothing in another namespace, whose processes have the same ids.
	if ns := pidNamespace(); r.PIDNamespace != "" && r.PIDNamespace != ns {
		return nil, fmt.Errorf("%w: recorded in the pid namespace %s, and this one is %s", errGone, r.PIDNamespace, ns)
	}
	h, err := openHandle(r.PID)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errGone, err)
	}
	if err := r.matches(h); err != nil {
		h.close()
		return nil, err
	}
	return h, nil
}

// matches checks that a process is the recorded one.
func (r record) matches(h *handle) error {
	start, state, err := procStat(h.proc)
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	if start != r.StartTime || state == "Z" || state == "X" {
		return fmt.Errorf("%w: process %d is another one or has exited", errGone, r.PID)
	}
	exe, err := os.Readlink(procPath(h.proc, "exe"))
	if err != nil {
		return fmt.Errorf("%w: %w", errGone, err)
	}
	// The file may have been replaced by an upgrade meanwhile.
	if exe = strings.TrimSuffix(exe, " (deleted)"); exe != r.Binary {
		return fmt.Errorf("%w: process %d runs %q", errGone, r.PID, exe)
	}
	// What was read is of this process only if it had not ended.
	_, err = h.procID()
	return err
}

// newRecord describes a running process.
func newRecord(h *handle, binary, fingerprint string) (record, error) {
	boot, err := bootID()
	if err != nil {
		return record{}, err
	}
	start, _, err := procStat(h.proc)
	if err != nil {
		return record{}, err
	}
	return record{
		PID: h.pid, PIDNamespace: pidNamespace(), StartTime: start, BootID: boot, Binary: resolved(binary), Fingerprint: fingerprint,
	}, nil
}

// resolved is the path as /proc/PID/exe shows it.
func resolved(path string) string {
	if p, err := filepath.EvalSymlinks(path); err == nil {
		return p
	}
	return path
}

// pidNamespace identifies the namespace that this process's ids are of; empty if it is unknown.
func pidNamespace() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return ns
}

func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

func procPath(pid int, name string) string { return filepath.Join("/proc", strconv.Itoa(pid), name) }

// ProcessState is the state of a process as /proc/PID/stat has it, by its name below /proc: R, S, D, T, t, Z.
func ProcessState(proc int) (string, error) {
	_, state, err := procStat(proc)
	return state, err
}

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
