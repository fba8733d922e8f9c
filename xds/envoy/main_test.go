package envoy_test

import (
	"os"
	"testing"

	"github.com/fairlead/fairlead/internal/parallel"
)

func TestMain(m *testing.M) {
	parallel.WaitingForEnvoys()
	os.Exit(m.Run())
}
