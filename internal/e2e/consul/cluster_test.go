package consul

import (
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/internal/envoytest"
	"github.com/fairlead/fairlead/internal/meshtest"
	"github.com/fairlead/fairlead/registry/consul"
)

// TestLeaderKilled shows that an election is not noticed, nor that the server
// which the control plane asked is gone for good.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	f := newFleet(t, true)
	load := f.load()
	for range 2 {
		killed := f.consul.KillLeader()
		f.takeOut(others()[0])
		f.none(f.equal())
		killed.Start()
		f.put(others()[0], api.HealthPassing)
		f.none(f.equal())
		load.Wait(t, 50)
	}
	f.unharmed(load)
}

// TestConsulRestarted shows that Consul may be away as a whole: the last known catalog
// stands, and what changed is seen as soon as there is somebody to ask.
func TestConsulRestarted(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		load := f.load()
		f.put(apis()[1], api.HealthCritical)
		f.awaitNoneOf("api-2")
		f.consul.Kill()
		f.awaitState(consul.Stale)
		load.Wait(t, 200)
		f.consul.Start()
		f.none(f.equal())
		f.awaitState(consul.Live)
		f.put(apis()[1], api.HealthPassing)
		f.takeOut(others()[3])
		f.none(f.equal())
		f.awaitAll()
		// So short that it may not have been seen at all.
		f.consul.RestartAll()
		f.takeOut(others()[4])
		f.none(f.equal())
		load.Wait(t, 50)
		f.unharmed(load)
	})
}

// TestLogReplayed is about the moment when a leader that has just started answers
// although it has not read all of its own log: what was registered last seems to be
// gone. The service with one instance loses none by that.
func TestLogReplayed(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		c := f.consul.Leader().Client()
		for n := range 2000 {
			if err := f.register(c, others()[n%20], []string{api.HealthWarning, api.HealthPassing}[n/20%2]); err != nil {
				t.Fatal(err)
			}
		}
		f.put(solo(), api.HealthPassing)
		f.none(f.equal())
		client := meshtest.NewClient(t, "solo.service.consul")
		envoytest.Eventually(t, patience, func() error {
			_, err := client.Get(t.Context(), f.url)
			return err
		})
		load := client.StartLoad(t, f.url, 200)
		for range 4 {
			f.consul.RestartAll()
			f.none(f.equal())
			load.Wait(t, 20)
		}
		f.unharmed(load)
	})
}

// TestDataLostAndRestored shows that a catalog which comes back without its data
// takes nothing away, and that the catalog is the snapshot's once that is
// restored, though all indexes go backwards.
func TestDataLostAndRestored(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		load := f.load()
		snapshot := f.consul.Snapshot()
		f.takeOut(others()[5]) // the snapshot has it
		f.none(f.equal())
		for i := range 20 { // and the index of what is lost is far ahead
			f.put(others()[6], []string{api.HealthWarning, api.HealthPassing}[i%2])
		}
		f.consul.Kill()
		f.consul.Wipe()
		f.consul.Start()
		if f.secured {
			// Its token is gone with the rest: it is told nothing.
			f.awaitState(consul.Stale)
		} else {
			f.awaitHeld(len(apis()))
		}
		load.Wait(t, 200)
		f.awaitAll()
		f.consul.Restore(snapshot)
		f.none(f.equal())
		load.Wait(t, 50)
		f.awaitAll()
		f.put(apis()[0], api.HealthCritical)
		f.awaitNoneOf("api-1")
		f.unharmed(load)
	})
}

// TestSnapshotRestoredWhileLive shows that a snapshot counts soon after it was restored on a
// cluster that runs, though no index is higher for it: an instance that it does not have is
// called no more, and one that it has is called again.
func TestSnapshotRestoredWhileLive(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		f.put(apis()[1], api.HealthCritical)
		f.awaitNoneOf("api-2")
		snapshot := f.consul.Snapshot()
		f.put(apis()[1], api.HealthPassing)
		f.awaitAll()
		f.put(apis()[0], api.HealthCritical)
		f.awaitNoneOf("api-1")
		load := f.load()
		f.consul.Restore(snapshot)
		began := time.Now()
		f.awaitNoneOf("api-2")
		f.awaitAnswerOf("api-1")
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		f.none(f.equal())
		f.unharmed(load)
	})
}

// TestTokenReplaced shows that without a valid token the last known catalog stays in force, that
// people are told why, and that the next token is used without a restart.
func TestTokenReplaced(t *testing.T) {
	t.Parallel()
	f := newFleet(t, true)
	load := f.load()
	f.consul.RevokeToken(f.token)
	// Consul looks at a token again when it has something to say.
	f.takeOut(others()[7])
	f.put(apis()[1], api.HealthCritical)
	st := f.awaitState(consul.Stale)
	t.Logf("reason %q, denied %q", st.Reason, st.Denied)
	load.Wait(t, 200)
	f.newToken()
	f.none(f.equal())
	f.awaitState(consul.Live)
	f.awaitNoneOf("api-2")

	// The rotation of a careful person: the old one is revoked last.
	old := f.token
	f.newToken()
	load.Wait(t, 50)
	f.consul.RevokeToken(old)
	f.put(apis()[1], api.HealthPassing)
	f.none(f.equal())
	f.awaitAll()
	f.unharmed(load)
}

// none fails the test if anything is held back.
func (f *fleet) none(held int) {
	f.t.Helper()
	if held != 0 {
		f.t.Errorf("%d removals are held", held)
	}
}
