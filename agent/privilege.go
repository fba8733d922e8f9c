package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// unprivilegedPortStart is the lowest port of this network namespace that needs no capability
// (Linux, Documentation/networking/ip-sysctl.rst).
const unprivilegedPortStart = "/proc/sys/net/ipv4/ip_unprivileged_port_start"

// firstPort is the lowest port at which an Envoy that the agent starts may listen; 0 means any. A
// child of root has CAP_NET_BIND_SERVICE if the bounding set has it, any other one if it is ambient
// (capabilities(7)).
func firstPort() (uint16, error) {
	ask := []int{unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_IS_SET, unix.CAP_NET_BIND_SERVICE}
	if os.Geteuid() == 0 {
		ask = []int{unix.PR_CAPBSET_READ, unix.CAP_NET_BIND_SERVICE, 0}
	}
	has, err := unix.PrctlRetInt(ask[0], uintptr(ask[1]), uintptr(ask[2]), 0, 0)
	if err != nil {
		return 0, fmt.Errorf("asking for CAP_NET_BIND_SERVICE: %w", err)
	}
	if has == 1 {
		return 0, nil
	}
	text, err := os.ReadFile(unprivilegedPortStart)
	if err != nil {
		return 0, fmt.Errorf("reading the first port that needs no privilege: %w", err)
	}
	port, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", unprivilegedPortStart, err)
	}
	return uint16(port), nil
}
