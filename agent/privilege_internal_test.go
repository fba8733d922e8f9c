package agent

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// printFirstPort has the test binary print what firstPort says, as another user or without a
// capability.
const printFirstPort = "FAIRLEAD_TEST_PRINT_FIRST_PORT"

// TestFirstPort compares with what the kernel allows: a process tries to listen at a low port.
func TestFirstPort(t *testing.T) {
	t.Parallel()
	if os.Getenv(printFirstPort) != "" {
		port, err := firstPort()
		_, _ = os.Stdout.WriteString("first port " + strconv.Itoa(int(port)) + "\n")
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if os.Geteuid() != 0 {
		envoytest.Missing(t, "other users need root")
	}
	for name, c := range map[string]struct {
		command []string
		want    string
	}{
		"root":                             {nil, "first port 0"},
		"root without the capability":      {[]string{"setpriv", "--bounding-set", "-net_bind_service"}, "first port 1024"},
		"another user":                     {[]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"}, "first port 1024"},
		"another user with an ambient one": {[]string{"setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--inh-caps", "+net_bind_service", "--ambient-caps", "+net_bind_service"}, "first port 0"},
		"ports from 80 on":                 {[]string{"unshare", "--net", "sh", "-c", `echo 80 > /proc/sys/net/ipv4/ip_unprivileged_port_start && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"`, "sh"}, "first port 80"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			argv := slices.Concat(c.command, []string{"/proc/self/fd/3", "-test.run=^TestFirstPort$", "-test.v"})
			binary, err := os.Open(os.Args[0]) // others may not be able to see its directory
			if err != nil {
				t.Fatal(err)
			}
			defer binary.Close()
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
			cmd.ExtraFiles, cmd.Env, cmd.Dir = []*os.File{binary}, append(os.Environ(), printFirstPort+"=1"), "/"
			out, err := cmd.CombinedOutput()
			if err != nil || !bytes.Contains(out, []byte(c.want+"\n")) {
				t.Errorf("%v: %s; want %q", err, out, c.want)
			}
		})
	}
}
