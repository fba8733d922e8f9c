package consul

import (
	"testing"

	"github.com/hashicorp/consul/api"

	"github.com/fairlead/fairlead/registry/consul"
)

// TestNetworkCut shows that a network which refuses, or which loses everything
// without a word, takes nothing away, and that what changed behind it is seen once
// it is whole again.
func TestNetworkCut(t *testing.T) {
	ways(t, func(f *fleet) {
		t := f.t
		load := f.load()
		f.consul.Front().Cut()
		f.awaitState(consul.Stale)
		f.put(apis()[0], api.HealthCritical)
		f.takeOut(others()[0])
		load.Wait(t, 100)
		f.consul.Front().Heal()
		f.none(f.equal())
		f.awaitState(consul.Live)
		f.awaitNoneOf("api-1")

		// In the midst of finding out what changed.
		f.takeOut(others()[2])
		f.consul.Front().Stall()
		f.put(apis()[0], api.HealthPassing)
		f.put(apis()[1], api.HealthCritical)
		f.put(others()[0], api.HealthPassing)
		load.Wait(t, 200)
		f.consul.Front().Heal()
		f.none(f.equal())
		f.awaitNoneOf("api-2")

		// Connections that were lost in silence: whoever waits on them hears of it
		// only when the network is whole again, by a reset.
		f.consul.Front().Stall()
		f.takeOut(others()[1])
		load.Wait(t, 100)
		f.consul.Front().Reset()
		f.consul.Front().Heal()
		f.none(f.equal())
		load.Wait(t, 50)
		f.unharmed(load)
	})
}
