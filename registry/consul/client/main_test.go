package client_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/fairlead/fairlead/internal/parallel"
)

func TestMain(m *testing.M) {
	parallel.Waiting()
	goleak.VerifyTestMain(m)
}
