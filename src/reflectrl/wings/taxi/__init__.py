"""DangerousTaxi: gymnasium's Taxi as text, where an action that changes nothing ends the episode."""
