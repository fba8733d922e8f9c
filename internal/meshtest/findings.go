package meshtest

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/fairlead/fairlead/internal/envoytest"
)

// findingLasts is how long a route leads nowhere before the status names it.
const findingLasts = 30 * time.Second

// EventuallyFound waits until proxy-status names one route that leads nowhere, with these words; or, if the first
// is empty, none.
func (m *Mesh) EventuallyFound(words ...string) {
	m.tb.Helper()
	envoytest.Eventually(m.tb, findingLasts+envoytest.Patience, func() error {
		out, err := m.CLI("proxy-status", "--run-dir", m.RunDir("server"))
		exit, exited := errors.AsType[*exec.ExitError](err)
		n := strings.Count(out, "no-endpoints: ") + strings.Count(out, "no-destination: ")
		switch {
		case words[0] == "" && (err != nil || n > 0):
			return fmt.Errorf("the mesh is to be well: %w\n%s", err, out)
		case words[0] != "" && (!exited || exit.ExitCode() != 1 || n != 1):
			return fmt.Errorf("%w: %d routes are named:\n%s", err, n, out)
		}
		for _, w := range words {
			if !strings.Contains(out, w) {
				return fmt.Errorf("no %q in\n%s", w, out)
			}
		}
		return nil
	})
}
