package peers.grpc;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Stories told with the Java client that speaks gRPC, with its defaults: {@code Stories HOST:PORT TLS}.
 * What happened is printed as lines {@code NAME VALUE}.
 */
public final class Stories {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;

    public static void main(String[] args) throws Exception {
        org.apache.rocketmq.client.apis.ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(args[0]);
        if (args[1].equals("plaintext")) {
            builder.enableSsl(false);
        }
        configuration = builder.build();
        consumedSimply();
        pushed();
        ordered();
        late();
        transacted();
        System.out.println("end -");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView view) {
        ByteBuffer body = view.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static Map<String, FilterExpression> all(String topic) {
        return Collections.singletonMap(topic, FilterExpression.SUB_ALL);
    }

    private static Producer producer(String... topics) throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topics).build();
    }

    /** Starts a consumer that stays open: its close would wait for the receive that the broker holds. */
    private static PushConsumer push(
        String topic, String group, org.apache.rocketmq.client.apis.consumer.MessageListener listener
    ) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(all(topic)).setMessageListener(listener).build();
    }

    private static void until(BooleanSupplier done) throws Exception {
        long end = System.nanoTime() + 60_000_000_000L;
        while (!done.getAsBoolean() && System.nanoTime() < end) {
            Thread.sleep(20);
        }
    }

    private static void consumedSimply() throws Exception {
        try (SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("simple").setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(all("normal")).build();
                Producer producer = producer("normal")) {
            Map<String, Integer> attempts = new LinkedHashMap<>();
            for (int number = 0; number < 5; number++) {
                SendReceipt receipt = producer.send(message("normal", "s" + number).setTag("paid")
                    .setKeys("k" + number).addProperty("color", "blue").build());
                System.out.println("sent " + receipt.getMessageId());
            }
            boolean isChanged = false;
            while (attempts.size() < 5 || attempts.get("s3") < 2) {
                List<MessageView> views = consumer.receive(16, Duration.ofSeconds(20));
                for (MessageView view : views) {
                    attempts.put(body(view), view.getDeliveryAttempt());
                    if (body(view).equals("s3") && !isChanged) {
                        isChanged = true;
                        consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                    } else {
                        consumer.ack(view);
                    }
                    if (body(view).equals("s0")) {
                        System.out.println("seen " + view.getTag().get() + "," + view.getKeys() + ","
                            + view.getProperties() + "," + view.getMessageId());
                    }
                }
            }
            System.out.println("attempts " + attempts);
        }
    }

    private static void pushed() throws Exception {
        Map<String, Integer> attempts = new ConcurrentHashMap<>();
        try (Producer producer = producer("pushed")) {
            push("pushed", "push", view -> {
                attempts.put(body(view), view.getDeliveryAttempt());
                boolean fails = body(view).equals("p2") && view.getDeliveryAttempt() == 1;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            });
            for (int number = 0; number < 5; number++) {
                producer.send(message("pushed", "p" + number).build());
            }
            until(() -> attempts.size() == 5 && attempts.get("p2") == 2);
            System.out.println("pushed " + new java.util.TreeMap<>(attempts));
        }
    }

    private static void ordered() throws Exception {
        ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
        try (Producer producer = producer("fifo")) {
            push("fifo", "ordered", view -> {
                seen.add(body(view));
                return ConsumeResult.SUCCESS;
            });
            for (int number = 0; number < 10; number++) {
                producer.send(message("fifo", "f" + number).setMessageGroup("one").build());
            }
            until(() -> seen.size() >= 10);
            System.out.println("ordered " + seen);
        }
    }

    private static void late() throws Exception {
        ConcurrentHashMap<String, Long> arrived = new ConcurrentHashMap<>();
        try (Producer producer = producer("delay")) {
            push("delay", "late", view -> {
                arrived.put(body(view), System.currentTimeMillis());
                return ConsumeResult.SUCCESS;
            });
            long due = System.currentTimeMillis() + 2000;
            SendReceipt recalled =
                producer.send(message("delay", "recalled").setDeliveryTimestamp(due).build());
            producer.recallMessage("delay", recalled.getRecallHandle());
            producer.send(message("delay", "late").setDeliveryTimestamp(due).build());
            until(() -> arrived.containsKey("late"));
            System.out.println("late " + (arrived.get("late") >= due) + "," + arrived.keySet());
        }
    }

    private static void transacted() throws Exception {
        ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
        ConcurrentLinkedQueue<String> asked = new ConcurrentLinkedQueue<>();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
                .setTopics("deals").setTransactionChecker(view -> {
                    asked.add(body(view));
                    return TransactionResolution.COMMIT;
                }).build()) {
            push("deals", "dealt", view -> {
                seen.add(body(view));
                return ConsumeResult.SUCCESS;
            });
            Transaction kept = producer.beginTransaction();
            producer.send(message("deals", "kept").build(), kept);
            kept.commit();
            Transaction dropped = producer.beginTransaction();
            producer.send(message("deals", "dropped").build(), dropped);
            dropped.rollback();
            producer.send(message("deals", "asked").build(), producer.beginTransaction());
            until(() -> seen.size() >= 2);
            System.out.println("transacted " + new java.util.TreeSet<>(seen) + asked);
        }
    }
}
